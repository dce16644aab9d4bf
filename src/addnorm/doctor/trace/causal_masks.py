"""Masks of the future: constants of (tokens, tokens) that tell later tokens from the others."""

import torch
from torch import Tensor

from addnorm.doctor.graph.graph import Graph

MIN_MASK_TOKENS = 4
"""Tokens from which on a triangle can be told from other patterns."""
MAX_MASK_TOKENS, MAX_MASKS = 32, 64
"""Tokens of a mask, and masks of examples and heads, that are looked at."""
CAUSAL_OFFSETS = (1, 2)
"""How many tokens ahead a mask may begin: the next one, or one too late."""


def causal_offset(mask: Tensor) -> int:
    """How many tokens ahead a mask of the future begins; 0 if a tensor is no such mask.

    Everything at (i, j) with j - i >= offset stands on one side, all the rest on the other: no
    entry of one lies among those of the other, and the gap is wider than either, or what is cut
    off has one value. Columns that stand wholly on the first side are padding. Which side is
    hidden, and how well, does not matter here: the mask of a careless hand is one, too.
    """
    wanted = mask.dtype == torch.bool or mask.is_floating_point()
    square = mask.dim() >= 2 and mask.shape[-1] == mask.shape[-2] >= MIN_MASK_TOKENS
    if not wanted or not square or mask.device.type == "meta" or not mask.numel():
        return 0
    with torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            few = mask.detach()[..., :MAX_MASK_TOKENS, :MAX_MASK_TOKENS]
            few = few.reshape(-1, *few.shape[-2:])[:MAX_MASKS].double().nan_to_num()
            return next((offset for offset in CAUSAL_OFFSETS if _is_causal_at(few, offset)), 0)
        except RuntimeError:  # inside vmap a tensor has no numbers to show
            return 0


def _is_causal_at(masks: Tensor, offset: int) -> bool:
    """Whether all of some masks, (count, tokens, tokens), are cut so many tokens ahead."""
    length = masks.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool, device=masks.device).triu(offset)
    return _is_separated(masks, later) or _is_separated(-masks, later)


def _is_separated(masks: Tensor, future: Tensor) -> bool:
    """Whether everything else stands above what is later."""
    ahead = masks[:, future]
    low, high = (level[:, None, None] for level in (ahead.amin(1), ahead.amax(1)))
    padding = ((masks <= high) | future).all(1, keepdim=True)
    seen = ~future & ~padding
    if bool((padding.sum(-1) * 2 > masks.shape[-1]).any()):
        return False
    most = masks.masked_fill(~seen, -torch.inf).amax((1, 2))
    least = masks.masked_fill(~seen, torch.inf).amin((1, 2))
    gap, wide = least - high.flatten(), (high - low).flatten()
    single = wide == 0
    return bool(((gap > 0) & (single | (gap > torch.maximum(wide, most - least)))).all())


def causal_offsets(graph: Graph, index: int) -> set[int]:
    """Where the masks of the future begin that a node takes, however they were made."""
    node = graph[index]
    found = {node.detail.get("diagonal", 0) + 1} if node.op == "tril" else set[int]()
    seen, waiting = {index}, [index]
    while waiting:
        for operand in graph[waiting.pop()].operands:
            found.add(operand.causal_offset)
            known = operand.kind != "node" or operand.node in seen
            if not known and not graph[operand.node].active:
                found.add(graph[operand.node].causal_offset)
                seen.add(operand.node)
                waiting.append(operand.node)
    return found & set(CAUSAL_OFFSETS)
