"""Detection of mask inputs by how the model uses them."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import ATTENTION, EMBEDDINGS, LOOKUPS, is_mixing
from addnorm.doctor.rule_context import RuleContext
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
HIDING_SCORE = -1e3
"""Largest number that hides a score when it is added."""
InputUse = Literal["mask", "tokens", "other", "none"]


def find_input_node(context: RuleContext, tensor: Tensor) -> int | None:
    """Return the graph node of an input tensor; None if it has none."""
    tensors = iter_tensors((context.trace.args, context.trace.kwargs))
    pairs = zip(tensors, context.trace.recording.inputs, strict=False)
    return next((index for each, index in pairs if each is tensor), None)


def flat_mask(tensor: Tensor) -> Tensor | None:
    """Return a mask as (B, L); None if its axes do not fit.

    A mask of keys may have axes of length 1 in between, for heads and queries.
    """
    if tensor.dim() < 2 or any(size != 1 for size in tensor.shape[1:-1]):
        return None
    return tensor.reshape(tensor.shape[0], tensor.shape[-1])


def is_additive(tensor: Tensor) -> bool:
    """Return whether a tensor is added to scores: zeros, and numbers that hide a score."""
    if not tensor.is_floating_point():
        return False
    return bool(((tensor == 0) | (tensor <= HIDING_SCORE)).all()) and bool((tensor < 0).any())


def is_binary(tensor: Tensor) -> bool:
    """Return whether an input has the shape and the values of a mask that is not causal."""
    flat = flat_mask(tensor)
    if flat is None or flat.numel() < 2 or flat.shape[1] < 2:
        return False
    if bool(((flat != 0) & (flat != 1)).any()) and not is_additive(flat):
        return False
    square = flat.shape[0] == flat.shape[1]
    return not (square and (torch.equal(flat, flat.tril()) or torch.equal(flat, flat.triu())))


def find_derived_nodes(graph: Graph, start: int | None) -> set[int]:
    """Return a node and the nodes that are computed from it alone, without weights."""
    if start is None:
        return set()
    derived = {start}
    for node in graph.nodes[start + 1 :]:
        own = any(o.kind == "node" and o.node in derived for o in node.operands)
        reads_weight = any(
            o.kind == "weight" or (o.kind == "node" and graph[o.node].learned)
            for o in node.operands
        )
        if own and not reads_weight and all(i in derived for i in node.inputs):
            derived.add(node.index)
    return derived


def find_input_use(context: RuleContext, tensor: Tensor) -> InputUse:
    """Return how the model uses an input: as mask, as token ids, otherwise, or not at all.

    A mask that is only multiplied with raw numeric inputs marks observed values. It hides no token
    and does not count as a mask.
    """
    graph = context.graph
    start = find_input_node(context, tensor)
    if start is None:
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
    # Zeros followed by ones may also number two segments; then no row has ones only.
    rows = tensor.reshape(tensor.shape[0], -1).float()
    falls, rises = (bool((d >= 0).all()) for d in (-rows.diff(dim=1), rows.diff(dim=1)))
    return bool(rows.any()) and (falls or (rises and bool(rows.all(1).any())))


def iter_masks(context: RuleContext, inputs: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the inputs that are masks, those that the model uses first."""
    masks = [(name, tensor) for name, tensor in inputs.items() if is_mask(context, tensor)]
    yield from sorted(masks, key=lambda pair: find_input_use(context, pair[1]) != "mask")


def iter_hidden_tokens(mask: Tensor, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over pairs of a mask and the tokens, (B, L), that it hides.

    A mask with both values is returned twice unless it shows which value hides, because True may
    mean valid or padding. A constant mask hides nothing, so it is changed to hide the last token.

    Args:
        mask: input of the model, in any shape that `flat_mask` accepts
        tokens: (B, L, ...) or (L, B, ...) tokens that it belongs to
    """
    flat = flat_mask(mask)
    if flat is None:
        return
    marked = flat.bool()
    if is_additive(flat):
        yield mask, marked
        return
    if mask.is_floating_point() and not bool(marked.any()):
        return  # perhaps added to scores; the value that would hide a token is unknown
    if bool(marked.all()) or not bool(marked.any()):
        changed = flat.clone()
        changed[:, -1] = 0 if bool(marked.all()) else 1
        last = torch.zeros_like(marked)
        last[:, -1] = True
        yield changed.view_as(mask), last
        return
    is_valid = _find_valid_value(marked, tokens)
    for value in (True, False) if is_valid is None else (is_valid,):
        yield mask, marked != value


def _find_valid_value(marked: Tensor, tokens: Tensor) -> bool | None:
    """Return the value of a mask at valid tokens; None if it is not known.

    The longest example of a batch has no padding, so a row with one value has the value of valid
    tokens. Otherwise padding is where all tokens are equal.
    """
    rows = {bool(row[0]) for row in marked if bool((row == row[0]).all())}
    if len(rows) == 1:
        return rows.pop()
    tokens = tokens if tokens.shape[:2] == marked.shape else tokens.transpose(0, 1)
    equal = [
        bool((part == part[0]).all()) if len(part) > 2 else False
        for part in (tokens[~marked], tokens[marked])
    ]
    return None if equal[0] == equal[1] else equal[0]
