"""Which input is a mask: what is done with it, not what it looks like."""

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
"""What a mask does to something that flows."""
COUNTING_OPS = frozenset({"cumsum", "sum"})
"""What makes positions or lengths of a mask: looking those up is no use as a token."""
InputUse = Literal["mask", "tokens", "other", "none"]


def find_input_node(context: RuleContext, tensor: Tensor) -> int:
    """The node of an input; -1 if it is none."""
    given = iter_tensors((context.trace.args, context.trace.kwargs))
    pairs = zip(given, context.trace.recorder.inputs, strict=False)
    return next((index for one, index in pairs if one is tensor), -1)


def is_binary(tensor: Tensor) -> bool:
    """Whether an input has one of two values for each token of each example."""
    if tensor.dim() != 2 or tensor.numel() < 2 or tensor.shape[1] < 2:
        return False
    if bool(((tensor != 0) & (tensor != 1)).any()):
        return False
    square = tensor.shape[0] == tensor.shape[1]
    return not (
        square and (torch.equal(tensor, tensor.tril()) or torch.equal(tensor, tensor.triu()))
    )


def find_input_use(context: RuleContext, tensor: Tensor) -> InputUse:
    """What the model does with an input: hides tokens by it, looks rows up, else, or nothing.

    What is only laid over numbers of the inputs, before anything was made of them, says which of
    them were observed and hides no token.
    """
    graph = context.graph
    start = find_input_node(context, tensor)
    if start < 0:
        return "none"
    made, found = {start: False}, set[InputUse]()
    for node in graph.nodes[start + 1 :]:
        mine = [o.node for o in node.operands if o.kind == "node" and o.node in made]
        if not mine:
            continue
        counted = node.op in COUNTING_OPS or any(made[i] for i in mine)
        others = [i for i in node.inputs if i not in made]
        table = any(
            o.kind == "weight" or (o.kind == "node" and graph[o.node].learned)
            for o in node.operands
        )
        looks_up = node.op in EMBEDDINGS or (
            table and (node.op in LOOKUPS or node.op == "mul" or is_mixing(node.op))
        )
        if node.op in ATTENTION and others:
            found.add("mask")
        elif looks_up:
            found |= set() if counted else {"tokens"}
        elif others:
            raw = all(graph[i].from_float_input and graph[i].last_mixing < 0 for i in others)
            found.add("mask" if node.op in MASKING_OPS and not raw else "other")
        else:
            made[node.index] = counted
    order: tuple[InputUse, ...] = ("mask", "tokens", "other")
    return next((use for use in order if use in found), "none")


def is_mask(context: RuleContext, tensor: Tensor) -> bool:
    """Whether an input hides tokens, or was meant to: then nothing at all is done with it."""
    if not is_binary(tensor):
        return False
    use = find_input_use(context, tensor)
    if use != "none" or tensor.dtype == torch.bool:
        return use in ("mask", "none")
    # Ignored: ones, then zeros, is how valid tokens are marked; zeros may be anything.
    rows = tensor.float()
    return bool((rows[:, 1:] <= rows[:, :-1]).all()) and bool(rows.any())


def iter_masks(context: RuleContext, inputs: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Inputs that are masks, those that are used first."""
    found = [(name, tensor) for name, tensor in inputs.items() if is_mask(context, tensor)]
    yield from sorted(found, key=lambda pair: find_input_use(context, pair[1]) != "mask")


def iter_hidden_tokens(mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """(a mask that hides something, what it hides): both readings of a mask that has both values.

    Of ones or of zeros alone nothing is hidden yet: there the last token is.
    """
    marked = mask.bool()
    if mask.is_floating_point() and not bool(marked.any()):
        return  # added to scores, perhaps: then only its owner knows what would hide
    if bool(marked.all()) or not bool(marked.any()):
        changed = mask.clone()
        changed[:, -1] = 0 if bool(marked.all()) else 1
        last = torch.zeros_like(marked)
        last[:, -1] = True
        yield changed, last
        return
    yield mask, ~marked
    yield mask, marked
