"""Detection of mask inputs by how the model uses them."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from addnorm.doctor.graph.ops import ATTENTION, EMBEDDINGS, LOOKUPS, is_mixing
from addnorm.doctor.rules.base import RuleContext
from addnorm.doctor.trace.tensors import iter_tensors

MASKING_OPS = ATTENTION | {
    "mul",
    "div",
    "add",
    "sub",
    "masked_fill",
    "where",
    "getitem",
    "masked_select",
}
"""Operations that apply a mask to an activation."""
COUNTING_OPS = frozenset({"cumsum", "sum"})
"""Operations that turn a mask into positions or lengths; looking these up is not a use as ids."""
InputUse = Literal["mask", "tokens", "other", "none"]


def find_input_node(context: RuleContext, tensor: Tensor) -> int:
    """Return the graph node of an input tensor; -1 if it has none."""
    tensors = iter_tensors((context.trace.args, context.trace.kwargs))
    pairs = zip(tensors, context.trace.recorder.inputs, strict=False)
    return next((index for each, index in pairs if each is tensor), -1)


def is_binary(tensor: Tensor) -> bool:
    """Return whether an input (B, L) holds zeros and ones only and is not a causal mask."""
    if tensor.dim() != 2 or tensor.numel() < 2 or tensor.shape[1] < 2:
        return False
    if bool(((tensor != 0) & (tensor != 1)).any()):
        return False
    square = tensor.shape[0] == tensor.shape[1]
    return not (
        square and (torch.equal(tensor, tensor.tril()) or torch.equal(tensor, tensor.triu()))
    )


def find_input_use(context: RuleContext, tensor: Tensor) -> InputUse:
    """Return how the model uses an input: as mask, as token ids, otherwise, or not at all.

    A mask that is only multiplied with raw numeric inputs marks observed values. It hides no token
    and does not count as a mask.
    """
    graph = context.graph
    start = find_input_node(context, tensor)
    if start < 0:
        return "none"
    # Nodes computed from the input alone, and whether they are counts of a mask.
    derived, uses = {start: False}, set[InputUse]()
    for node in graph.nodes[start + 1 :]:
        own = [o.node for o in node.operands if o.kind == "node" and o.node in derived]
        if not own:
            continue
        counted = node.op in COUNTING_OPS or any(derived[i] for i in own)
        others = [i for i in node.inputs if i not in derived]
        reads_weight = any(
            o.kind == "weight" or (o.kind == "node" and graph[o.node].learned)
            for o in node.operands
        )
        looks_up = node.op in EMBEDDINGS or (
            reads_weight and (node.op in LOOKUPS or node.op == "mul" or is_mixing(node.op))
        )
        if node.op in ATTENTION and others:
            uses.add("mask")
        elif looks_up:
            uses |= set() if counted else {"tokens"}
        elif others:
            raw = all(graph[i].from_float_input and graph[i].last_mixing < 0 for i in others)
            uses.add("mask" if node.op in MASKING_OPS and not raw else "other")
        else:
            derived[node.index] = counted
    order: tuple[InputUse, ...] = ("mask", "tokens", "other")
    return next((use for use in order if use in uses), "none")


def is_mask(context: RuleContext, tensor: Tensor) -> bool:
    """Return whether an input hides tokens, or looks like a mask that the model ignores."""
    if not is_binary(tensor):
        return False
    use = find_input_use(context, tensor)
    if use != "none" or tensor.dtype == torch.bool:
        return use in ("mask", "none")
    # The model ignores it. Ones followed by zeros is the usual form of a mask of valid tokens.
    rows = tensor.float()
    return bool((rows[:, 1:] <= rows[:, :-1]).all()) and bool(rows.any())


def iter_masks(context: RuleContext, inputs: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the inputs that are masks, those that the model uses first."""
    masks = [(name, tensor) for name, tensor in inputs.items() if is_mask(context, tensor)]
    yield from sorted(masks, key=lambda pair: find_input_use(context, pair[1]) != "mask")


def iter_hidden_tokens(mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over pairs of a mask and the tokens that it hides.

    A mask with both values is returned twice, because True may mean valid or padding. A constant
    mask hides nothing, so it is changed to hide the last token.
    """
    marked = mask.bool()
    if mask.is_floating_point() and not bool(marked.any()):
        return  # perhaps added to scores; the value that would hide a token is unknown
    if bool(marked.all()) or not bool(marked.any()):
        changed = mask.clone()
        changed[:, -1] = 0 if bool(marked.all()) else 1
        last = torch.zeros_like(marked)
        last[:, -1] = True
        yield changed, last
        return
    yield mask, ~marked
    yield mask, marked
