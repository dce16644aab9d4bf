"""Padding ids: a model that masks its tokens itself, compared with an example cut before them.

A padding id cannot be replaced without declaring other tokens valid, so the padded example is
compared with a shorter one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.ops import ATTENTION, EMBEDDINGS
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.probing.input_masks import MASKING_OPS, find_input_node, is_mask
from addnorm.doctor.rules.probing.model_runs import (
    get_inputs,
    replace_inputs,
    run_model,
    tensors_by_name,
)
from addnorm.doctor.rules.probing.output_layout import MAX_EXTRA_TOKENS, drop_hidden_tokens
from addnorm.doctor.rules.probing.perturb import (
    NOTICEABLE_CHANGE,
    find_stream_input,
    relative_change,
)

MIN_TOKENS = 3
"""Fewest tokens of an example that is padded."""
MIN_PADDING = 2
"""Fewest padding ids in a row of an example that declare padding without a mask."""
COMPARISONS = frozenset({"eq", "ne", "gt", "le"})
"""Comparisons of tokens with a padding id; ids up to the number are padding for the last two."""


@dataclass(frozen=True, slots=True)
class PaddingChange:
    """Change of the outputs of valid tokens when padding changes."""

    source: str
    """What declares the padding, such as `mask 'attention_mask'`."""
    change: float | None
    """Relative change; None if it could not be measured."""
    threshold: float = NOTICEABLE_CHANGE
    """Largest change that rounding explains."""
    is_masked: bool = True
    """Whether the inputs or the model declare a mask, not only a padding index."""


def iter_padding_ids(context: RuleContext, names: dict[str, Tensor]) -> Iterator[tuple[str, int]]:
    """Iterate over inputs with token ids that the model masks itself, and their padding ids.

    The mask must be applied to the scores of an attention: a comparison alone may also look for a
    token that ends or separates sentences.
    """
    graph = context.graph
    for name, tensor in names.items():
        is_ids = tensor.dim() == 2 and not tensor.is_floating_point()
        if not is_ids or tensor.shape[1] <= MIN_TOKENS or is_mask(context, tensor):
            continue
        start = find_input_node(context, tensor)
        if start is None or not _masks_scores(graph, start, length=tensor.shape[1]):
            continue
        padding_ids = [*_compared_numbers(graph, start), *_padding_indices(context, start)]
        if padding_ids:
            yield name, padding_ids[0]


def _masks_scores(graph: Graph, start: int, *, length: int) -> bool:
    """Return whether a mask computed from an input is applied to the scores of an attention."""
    for node in graph.nodes[start + 1 :]:
        over_keys = node.op in MASKING_OPS and len(node.shape) > 2 and node.shape[-1] == length
        if not node.inputs or not (over_keys or node.op in ATTENTION):
            continue
        masks = [
            o.node
            for o in node.operands
            if o.kind == "node"
            and graph[o.node].depends_on_input
            and not graph[o.node].active
            and not graph[o.node].learned
        ]
        if any(start in graph.data_ancestors(index) for index in masks):
            return True
    return False


def _compared_numbers(graph: Graph, start: int) -> Iterator[int]:
    """Yield the numbers that an input is compared with."""
    same = {start}
    for node in graph.nodes[start + 1 :]:
        reads = any(o.kind == "node" and o.node in same for o in node.operands)
        if not reads:
            continue
        if node.size == graph[start].size and len(node.operands) == 1 and not node.active:
            same.add(node.index)
        if node.op in COMPARISONS:
            numbers = (o.value for o in node.operands if o.kind in ("number", "constant"))
            yield from (int(n) for n in numbers if n is not None and n >= 0 and n == int(n))


def _padding_indices(context: RuleContext, start: int) -> Iterator[int]:
    """Yield the padding index of the embeddings that read an input."""
    graph = context.graph
    indices = {
        f"{path}.weight": module.padding_idx
        for path, module in context.trace.model.named_modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }
    for node in graph.nodes[start + 1 :]:
        if node.op in EMBEDDINGS and any(o.node == start for o in node.operands):
            yield from (indices[o.name] for o in node.operands if o.name in indices)


def cut_change(context: RuleContext, *, name: str, padding_id: int) -> PaddingChange:
    """Compare an example that ends with padding with the same example without it."""
    example = get_inputs(context)
    tokens = tensors_by_name(example)[name]
    length = tokens.shape[1]
    count = length - max(1, length // 3)
    others = tokens[tokens != padding_id]
    source = f"padding id {padding_id} of {name!r}"
    if not others.numel():
        return PaddingChange(source, None)
    valid = torch.where(tokens == padding_id, others.flatten()[0], tokens)
    padded = torch.where(torch.arange(length, device=tokens.device) < count, valid, padding_id)
    before = run_model(context, replace_inputs(example, {name: padded}))
    short = replace_inputs(example, {name: valid[:, :count]})
    after = run_model(context, short)
    if after is None:  # other inputs have one entry per token
        after = run_model(context, cut_tokens(short, length, count=count))
    if before is None or after is None:
        return PaddingChange(source, row_change(context, {name: padded}, padding_id=padding_id))
    changes = [
        math.inf
        if bool((kept.isfinite() & ~after.isfinite()).any())  # valid tokens are hidden
        else relative_change(after, kept)
        for kept in _iter_valid_parts(before, tuple(after.shape), length=length, count=count)
    ]
    threshold = max(NOTICEABLE_CHANGE, 64 * torch.finfo(before.dtype).eps)
    return PaddingChange(source, min(changes, default=None), threshold)


def iter_unmasked_padding(
    context: RuleContext, names: dict[str, Tensor]
) -> Iterator[tuple[str, int]]:
    """Iterate over inputs that end or begin with the padding index of their embedding.

    The ids of the example must use the index as padding only: at one end of the rows, with two or
    more of them in a row, and not in all rows alike.
    """
    for name, tensor in names.items():
        is_ids = tensor.dim() == 2 and not tensor.is_floating_point()
        start = find_input_node(context, tensor) if is_ids else None
        for padding_id in () if start is None else _padding_indices(context, start):
            if _is_padded(tensor == padding_id) or _is_padded((tensor == padding_id).flip(1)):
                yield name, padding_id
                break


def _is_padded(hidden: Tensor) -> bool:
    """Return whether True marks the ends of rows of different lengths."""
    counts = hidden.sum(1)
    ends = torch.arange(hidden.shape[1], device=hidden.device) >= hidden.shape[1] - counts[:, None]
    is_padding = torch.equal(hidden, ends) and int(counts.max()) >= MIN_PADDING
    return is_padding and int(counts.max()) < hidden.shape[1] and len(counts.unique()) > 1


def row_change(
    context: RuleContext, replacements: dict[str, Tensor], *, padding_id: int
) -> float | None:
    """Return the change of valid tokens when the embedding of the padding id changes.

    None if no table of its own holds the embedding, or if nothing can be compared.
    """
    graph, names = context.graph, tensors_by_name(get_inputs(context))
    starts = {find_input_node(context, names[name]) for name in replacements}
    readers: dict[str, set[int]] = {}
    for node in graph:
        for operand in node.operands:
            if operand.kind == "weight" and operand.name:
                readers.setdefault(operand.name, set()).add(node.index)
    tables = {
        name: context.weights[name].detach().clone()
        for name, nodes in readers.items()
        if context.weights[name].dim() == 2
        and all(graph[i].op in EMBEDDINGS and _reads(graph, i, starts) for i in nodes)
    }
    example = replace_inputs(get_inputs(context), replacements)
    before = run_model(context, example)
    for name, table in tables.items():
        table[padding_id] = -table.roll(1, 0)[padding_id] + table.std()
        tables[name] = table
    after = run_model(context, example, weights=tables) if tables else None
    if before is None or after is None or before.shape != after.shape:
        return None
    target = find_stream_input(context, names)  # the outputs belong to its tokens
    tokens = replacements.get(str(target), names.get(str(target)))
    if tokens is not None and tokens.dim() == 2 and not tokens.is_floating_point():
        before, after = (drop_hidden_tokens(out, tokens == padding_id) for out in (before, after))
    return relative_change(before, after)


def _reads(graph: Graph, index: int, starts: set[int | None]) -> bool:
    return any(o.node in starts for o in graph[index].operands if o.kind == "node")


def _iter_valid_parts(
    out: Tensor, shape: tuple[int, ...], *, length: int, count: int
) -> Iterator[Tensor]:
    """Yield the parts of an output with `length` tokens that may be those of `count` tokens.

    A model may add tokens before or after them.
    """
    if tuple(out.shape) == shape:
        yield out
        return
    if out.dim() != len(shape):
        return
    axes = [axis for axis, size in enumerate(shape) if size != out.shape[axis]]
    more = out.shape[axes[0]] - length if len(axes) == 1 else -1
    if not 0 <= more <= MAX_EXTRA_TOKENS or shape[axes[0]] - count != more:
        return
    for behind in range(more + 1):
        front = out.narrow(axes[0], 0, count + more - behind)
        yield torch.cat([front, out.narrow(axes[0], length + more - behind, behind)], axes[0])


def cut_tokens(example: Any, length: int, *, count: int) -> Any:
    """Return an example with `count` of its tokens, in every input that has `length`."""

    def cut(tensor: Tensor) -> Tensor:
        for axis in range(1, tensor.dim()):
            tensor = tensor.narrow(axis, 0, count) if tensor.shape[axis] == length else tensor
        return tensor

    return replace_inputs(example, {n: cut(t) for n, t in tensors_by_name(example).items()})
