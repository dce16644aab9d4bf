"""Causal masks: square constants that separate later tokens from the others.

torch.full((4, 4), -inf).triu(1)     causal_offset -> 1   hides j - i >= 1
torch.ones(4, 4).triu(2).bool()      causal_offset -> 2   hides one token too few
torch.ones(8, 4).tril().bool()       causal_offset -> 1   fewer keys than queries, as in Linformer
torch.rand(4, 4)                     causal_offset -> 0   not a causal mask
"""

import torch
from torch import Tensor

from addnorm.doctor.graph.graph import Graph

MIN_MASK_TOKENS = 4
"""Smallest number of tokens at which a triangle differs from other patterns."""
MAX_MASK_TOKENS, MAX_MASKS = 32, 64
"""Tokens of a mask, and masks of a batch, that are checked."""
CAUSAL_OFFSETS = (1, 2)
"""Diagonals where a mask may begin: 1 is correct, 2 is one token too late."""


def causal_offset(mask: Tensor) -> int:
    """Return the first diagonal that a causal mask hides; 0 if a tensor is not a causal mask.

    The entries at (i, j) with j - i >= offset must be separated from all others: by a gap wider
    than the range of either group, or because they all have one value. Columns that lie completely
    on their side are padding. Which side the mask hides, and whether its values are large enough
    to hide anything, does not matter: a wrong mask is still recognized as one.

    Args:
        mask: (..., queries, keys) boolean or floating-point tensor
    """
    is_candidate = mask.dtype == torch.bool or mask.is_floating_point()
    is_tall = mask.dim() >= 2 and mask.shape[-2] >= mask.shape[-1] >= MIN_MASK_TOKENS
    if not is_candidate or not is_tall or mask.device.type == "meta" or not mask.numel():
        return 0
    with torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            keys = min(mask.shape[-1], MAX_MASK_TOKENS)
            if not _is_constant_below(mask.detach(), mask.shape[-1]):
                return 0
            corner = mask.detach()[..., :keys, :keys]
            masks = corner.reshape(-1, *corner.shape[-2:])[:MAX_MASKS].double().nan_to_num()
            return next((offset for offset in CAUSAL_OFFSETS if _is_causal_at(masks, offset)), 0)
        except RuntimeError:  # inside vmap a tensor has no values
            return 0


def grows_with_distance(bias: Tensor) -> bool:
    """Return whether the bias of every pair of tokens is larger the further they are apart.

    Only earlier keys are compared, since a causal mask may hide the others. ALiBi adds the
    opposite.

    >>> distance = (torch.arange(5)[:, None] - torch.arange(5)).float()
    >>> grows_with_distance(distance), grows_with_distance(-distance)
    (True, False)

    Args:
        bias: (..., tokens, tokens) floating-point tensor
    """
    is_square = bias.dim() >= 2 and bias.shape[-1] == bias.shape[-2] >= MIN_MASK_TOKENS
    if not is_square or not bias.is_floating_point() or bias.device.type == "meta":
        return False
    with torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            keys = min(bias.shape[-1], MAX_MASK_TOKENS)
            corner = bias.detach()[..., :keys, :keys].reshape(-1, keys, keys)[:MAX_MASKS].double()
            steps = corner[..., :-1] - corner[..., 1:]  # from a key to the one behind it
            earlier = torch.ones(keys, keys - 1, dtype=torch.bool, device=bias.device).tril(-1)
            return bool((steps[:, earlier] > 0).all()) and bool(steps[:, earlier].isfinite().all())
        except RuntimeError:  # inside vmap a tensor has no values
            return False


def _is_constant_below(mask: Tensor, keys: int) -> bool:
    """Return whether queries behind the last key see as much as the query of the last key."""
    below = mask[..., keys:, :]
    return not below.numel() or bool((below == mask[..., keys - 1 : keys, :]).all())


def _is_causal_at(masks: Tensor, offset: int) -> bool:
    """Return whether all masks, (count, tokens, tokens), are separated at this diagonal."""
    length = masks.shape[-1]
    later = torch.ones(length, length, dtype=torch.bool, device=masks.device).triu(offset)
    return _is_separated(masks, later) or _is_separated(-masks, later)


def _is_separated(masks: Tensor, future: Tensor) -> bool:
    """Return whether all entries outside `future`, except padding, are above those inside."""
    hidden = masks[:, future]
    low, high = (level[:, None, None] for level in (hidden.amin(1), hidden.amax(1)))
    padding = ((masks <= high) | future).all(1, keepdim=True)
    visible = ~future & ~padding
    if bool((padding.sum(-1) * 2 > masks.shape[-1]).any()):
        return False
    largest = masks.masked_fill(~visible, -torch.inf).amax((1, 2))
    smallest = masks.masked_fill(~visible, torch.inf).amin((1, 2))
    gap, hidden_range = smallest - high.flatten(), (high - low).flatten()
    is_wide = gap > torch.maximum(hidden_range, largest - smallest)
    return bool(((gap > 0) & ((hidden_range == 0) | is_wide)).all())


def causal_offsets(graph: Graph, index: int) -> set[int]:
    """Return the offsets of all causal masks that a node reads, directly or indirectly."""
    node = graph[index]
    offsets = {node.detail.get("diagonal", 0) + 1} if node.op == "tril" else set[int]()
    visited, waiting = {index}, [index]
    while waiting:
        for operand in graph[waiting.pop()].operands:
            offsets.add(operand.causal_offset)
            is_new = operand.kind == "node" and operand.node not in visited
            if is_new and not graph[operand.node].active:
                offsets.add(graph[operand.node].causal_offset)
                visited.add(operand.node)
                waiting.append(operand.node)
    return offsets & set(CAUSAL_OFFSETS)
