"""Rules `constant_positions`, `rotary_over_heads` and `inverted_bias`: wrong positions.

x + table[:, L]                 one row of the table for all tokens, instead of table[:, :L]
x + table(arange(B))            one row for each example
rotate(q) with (1, 1, H, d)     angles that count heads, instead of (1, T, 1, d)
scores + slope * distance       far tokens are preferred, instead of near ones
"""

import math
from collections.abc import Iterator
from functools import partial

from torch import Tensor

from addnorm.doctor.analysis.axis_mixing import trace_axes
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.axis_layout import collect_origins
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node, Operand, Shape
from addnorm.doctor.graph.ops import ATTENTION, EMBEDDINGS, LOOKUPS, is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

MAX_SCORE_STEPS = 12
"""Operations between the product of queries and keys and the softmax."""


@rule("constant_positions")
def constant_positions(context: RuleContext) -> Iterator[Finding]:
    """Report tables of positions of which all tokens read the same row.

    The table must have a row for each token, its row must not be chosen by an input, as that of a
    time step or a class, and nothing else may tell tokens apart by their position.
    """
    if not context.blocks:
        return
    first = min(block.add.fork for block in context.blocks)
    for node in context.graph:
        if node.op != "add" or not node.active or len(node.shape) != 3 or node.index > first:
            continue
        axis = _token_axis(context, node)
        rows, length = _count_rows(context, node, axis), node.shape[axis]
        if rows >= length > 1 and not _tells_tokens_apart(context, length):
            yield Finding(
                "constant_positions", "warning", node.path,
                f"all {length} tokens read the same row of a table with {rows} rows, so "
                "their order has no effect; index the table by the position in the sequence, as "
                "table[:length]",
                {"tokens": length, "rows": rows},
            )  # fmt: skip
            return


def _token_axis(context: RuleContext, node: Node) -> int:
    """Return the axis of a stream of three axes along which attention looks: 1, or 0 if only that
    has as many entries as an attention has queries."""
    counts = {attention.query_count for attention in context.trace.recording.stats.attentions}
    return 0 if node.shape[0] in counts and node.shape[1] not in counts else 1


def _count_rows(context: RuleContext, node: Node, axis: int) -> int:
    """Return the rows of a table of which all tokens get the same one; 0 if there is none."""
    graph, length, width = context.graph, node.shape[axis], node.shape[-1]
    for operand in node.operands:
        shape = graph[operand.node].shape if operand.kind == "node" else operand.shape
        if not shape or shape[-1] != width or len(shape) > 3:
            continue
        if ((1,) * (3 - len(shape)) + tuple(shape))[axis] == length:
            continue
        if operand.kind == "constant":
            return max((_rows(b.shape, width) for b in _tables(context)), default=0)
        source = graph[operand.node] if operand.kind == "node" else None
        if source is not None and source.learned and not source.depends_on_input:
            return max((_rows(o.shape, width) for o in _lookups(context, source)), default=0)
    return 0


def _tables(context: RuleContext) -> Iterator[Tensor]:
    """Yield the buffers that hold numbers."""
    yield from (b for b in context.trace.model.buffers() if b.is_floating_point())


def _lookups(context: RuleContext, node: Node) -> Iterator[Operand]:
    """Yield the weights of which a node, or one that it is computed from, reads some rows."""
    for _ in range(8):
        names = [o for o in node.operands if o.kind == "weight"]
        if names and node.op in EMBEDDINGS | LOOKUPS | {"select"}:
            readers = sum(
                o.kind == "weight" and o.name in {n.name for n in names}
                for other in context.graph
                for o in other.operands
            )
            yield from names if readers == len(names) else ()
            return
        parents = [o.node for o in node.operands if o.kind == "node"]
        if len(parents) != 1:
            return
        node = context.graph[parents[0]]


def _rows(shape: Shape, width: int) -> int:
    return math.prod(shape[:-1]) if shape[-1:] == (width,) else 0


def _tells_tokens_apart(context: RuleContext, length: int) -> bool:
    """Return whether a weight or a constant other than a causal mask has an entry per token."""
    graph = context.graph
    for node in graph:
        if not node.active or is_mixing(node.op):
            continue
        for operand in node.operands:
            if operand.kind == "node":
                source = graph[operand.node]
                shape, is_mask = source.shape, bool(source.causal_offset)
                is_table = not source.active and not source.depends_on_input
            else:
                shape, is_mask = operand.shape, bool(operand.causal_offset)
                is_table = operand.kind in ("constant", "weight")
            is_lookup = node.op in EMBEDDINGS | LOOKUPS
            if is_table and not is_mask and not is_lookup and length in shape[:-1]:
                return True
    return False


@rule("rotary_over_heads")
def rotary_over_heads(context: RuleContext) -> Iterator[Finding]:
    """Report rotary embeddings whose angles differ by head instead of by token."""
    wrong = [block for block in context.blocks if _rotates_heads(context, block)]
    if wrong:
        yield Finding(
            "rotary_over_heads", "error", context.module_path(wrong[0]),
            f"{len(wrong)} attentions rotate queries and keys by constants with one row for each "
            "head and none for each token, so positions have no effect; apply the rotary embedding "
            "along the axis of tokens",
            {"attentions": len(wrong)},
        )  # fmt: skip


def _rotates_heads(context: RuleContext, block: AddAnalysis) -> bool:
    """Return whether constants multiply heads and features of queries and keys, but not tokens."""
    graph, fork = context.graph, block.add.fork
    if block.kind != "self-attention" or len(graph[fork].shape) != 3:
        return False
    layouts, _ = trace_axes(graph, block.add.path, starts=[fork])
    count = 0
    for index in block.add.path - {fork}:
        node, layout = graph[index], layouts.get(index)
        tables = [o for o in node.operands if o.kind == "constant" and len(o.shape) > 1]
        if node.op != "mul" or len(tables) != 1 or layout is None:
            continue
        shape = (1,) * (len(node.shape) - len(tables[0].shape)) + tables[0].shape
        wide = [axis for axis, size in zip(layout, shape, strict=True) if size > 1]
        is_over_heads = len(wide) == 2 and all(collect_origins([axis]) == {-1} for axis in wide)
        count += is_over_heads
    return count >= 4  # cosine and sine, of queries and keys


@rule("inverted_bias")
def inverted_bias(context: RuleContext) -> Iterator[Finding]:
    """Report constant biases of the scores that grow with the distance, as ALiBi with a wrong sign.

    A bias that is subtracted must grow, so that only those that are added are reported.
    """
    graph = context.graph
    wrong = []
    for attention in context.trace.recording.stats.attentions:
        node = graph[attention.node]
        if node.op in ATTENTION:
            wrong += [node] if any(map(partial(_favors_far, graph), node.operands[3:])) else []
            continue
        for _ in range(MAX_SCORE_STEPS):
            if not node.inputs or is_mixing(node.op):
                break
            others = [o for o in node.operands if o.node not in node.inputs]
            if node.op == "add" and any(_favors_far(graph, o) for o in others):
                wrong.append(node)
                break
            node = graph[max(node.inputs, key=lambda i: graph[i].size)]
    if wrong:
        yield Finding(
            "inverted_bias", "error", wrong[0].path,
            f"the bias of {len(wrong)} attentions grows with the distance of two tokens, so that "
            "each token prefers those far away; subtract it, as ALiBi does: scores - slope * "
            "distance",
            {"attentions": len(wrong), "shape": wrong[0].shape},
        )  # fmt: skip


def _favors_far(graph: Graph, operand: Operand) -> bool:
    return operand.favors_far or (operand.kind == "node" and graph[operand.node].favors_far)
