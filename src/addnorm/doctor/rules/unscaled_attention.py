"""Rule `unscaled_attention`: products of queries and keys without 1 / sqrt(d)."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.analysis.weight_roles import find_weight_roles
from addnorm.doctor.graph.contractions import (
    find_operand_axes,
    is_activation_product,
    tensor_operands,
)
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.graph.ops import PASS_THROUGH, SLICES, is_mixing
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.trace.statistics import Attention

PLAIN_OPS = PASS_THROUGH | SLICES | {"add", "sub", "neg", "cat", "stack", "setitem", "repeat",
                                     "repeat_interleave", "linear", "index_put"}  # fmt: skip
"""Operations that do not rescale queries, keys or scores."""
REPEATS = frozenset({"repeat_interleave", "repeat"})
"""Operations that copy keys and values for several heads of queries."""
MAX_STREAM_STEPS = 24
LARGE_DEVIATION = 0.5
"""Deviation of the logits above which attention starts uneven; torch's default weights give 1/3
with the factor, and sqrt(d)/3 without it."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of one attention."""

    block: AddAnalysis
    attention: Attention
    head_dim: int
    factor: float | None
    """Constant factor of the scores; None if something else may bound them."""
    total: float | None = None
    """Constant factor of queries, keys and scores together; None if it is not known."""
    parts: tuple[float, ...] = ()
    """Constant factors of queries, keys and scores, if all of them are known."""
    heads: int = 0
    """Number of heads; 0 if the scores do not show it."""
    key_widths: tuple[int, ...] = ()
    """Features that the matrices of queries and keys return for all heads."""

    @property
    def is_scaled(self) -> bool:
        """Whether the scores are divided by something, or may be bounded."""
        return self.factor is None or self.factor < 1


@rule("unscaled_attention")
def unscaled_attention(context: RuleContext) -> Iterator[Finding]:
    """Report Transformers whose attention scores are not divided by sqrt(d).

    Silent if anything else may bound the scores: a norm or a learned or constant factor on
    queries, keys or scores, or smaller initial query and key weights, as in T5. Trained weights
    may have adapted. At most a remark if the logits are small all the same.
    """
    if not any(block.kind == "feed-forward" for block in context.blocks):
        return  # attention inside convolutional networks is rarely scaled
    scores = [s for block in context.blocks for s in iter_scores(context, block)]
    unscaled = [s for s in scores if not s.is_scaled]
    if not unscaled or context.has_trained_gains:
        return
    if any(_is_scaled_by_init(context, s) for s in unscaled):
        return
    deviation = median(s.attention.logit_deviation for s in unscaled)
    dim, factor = unscaled[0].head_dim, unscaled[0].factor or 1.0
    how = "without" if factor == 1 else f"with the factor {factor:.3g} instead of"
    mixed = len(unscaled) < len(scores)
    severity: Severity = "warning" if mixed or deviation > LARGE_DEVIATION else "info"
    yield Finding(
        "unscaled_attention", severity, unscaled[0].attention.path,
        f"{len(unscaled)} of {len(scores)} attentions multiply queries and keys of {dim} features "
        f"{how} 1 / sqrt({dim}); their logits have the deviation {deviation:.2g} instead of "
        f"{deviation / math.sqrt(dim) / factor:.2g} at these weights; divide the scores by sqrt(d)",
        {
            "head dim": dim,
            "factor": factor,
            "deviation": deviation,
            "largest": unscaled[0].attention.max_logit,
        },
    )  # fmt: skip


def iter_scores(context: RuleContext, block: AddAnalysis) -> Iterator[Scores]:
    """Iterate over the attentions of a block whose scores can be read; one for each single head."""
    if block.kind not in ("self-attention", "cross-attention"):
        return
    for attention in context.trace.recording.stats.attentions:
        if attention.node in block.add.path and not math.isnan(attention.logit_deviation):
            scores = _read_scores(context, block, attention)
            if scores is not None:
                yield scores


def _read_scores(context: RuleContext, block: AddAnalysis, attention: Attention) -> Scores | None:
    graph, node = context.graph, context.graph[attention.node]
    if node.op == "softmax":
        product = _find_product(context, node.index)
        if product is None:
            return None
        index, factor = product
        operands = tensor_operands(graph[index])
    elif node.op == "scaled_dot_product_attention":
        factor, operands = node.detail.get("scale"), list(node.operands[:2])
        index = node.index
    else:
        return None  # multi_head_attention_forward always scales
    streams = [o.node for o in operands if o.kind == "node"]
    if len(streams) != 2:
        return None
    dim = min(graph[i].shape[-1] for i in streams)
    is_fused = node.op == "scaled_dot_product_attention"
    parts = [dim**-0.5 if is_fused and factor is None else factor]
    for stream in dict.fromkeys(streams):
        if _is_scaled_stream(context, block, stream):
            factor = None
        parts.append(_stream_factor(context, stream))
    known = [part for part in parts if part is not None]
    total = math.prod(known) if len(known) == len(parts) else None
    shape = graph[streams[0] if is_fused else index].shape
    if node.op == "softmax":
        axes = [find_operand_axes(graph, index, position=i) for i in range(2)]
        sizes = [
            math.prod(graph[n].shape[i] for i in a.summed)
            for n, a in zip(streams, axes, strict=True)
            if a
        ]
        dim = min(sizes, default=dim)
    return Scores(
        block, attention, dim, factor, total,
        parts=tuple(known) if total is not None else (),
        heads=shape[-3] if len(shape) > 3 else 0,
        key_widths=tuple(w for i in streams if (w := _projected_width(graph, i))),
    )  # fmt: skip


def _stream_factor(context: RuleContext, index: int) -> float | None:
    """Return the constant factor between a projection and the scores; None if it is not known.

    Rotary positions do not change the length of queries and keys: of their two parts, the first is
    followed.
    """
    graph, factor = context.graph, 1.0
    node = graph[index]
    for _ in range(MAX_STREAM_STEPS):
        if node.op == "linear":
            return factor
        is_joined = node.op in ("add", "sub", "cat", "stack") and len(node.inputs) > 1
        is_rotation = node.op == "mul" and len(node.inputs) == 1 and _is_rotation(context, node)
        is_plain = node.op in PASS_THROUGH | SLICES | REPEATS | {"view_as_complex"}
        constant = 1.0 if is_plain or is_joined or is_rotation else _constant_factor(node)
        if constant is None or not node.inputs or (len(node.inputs) > 1 and not is_joined):
            return None
        factor, node = factor * constant, graph[node.inputs[0]]
    return None


def _projected_width(graph: Graph, index: int) -> int:
    """Return the features that the matrix of queries or keys returns; 0 if it is not found."""
    node = graph[index]
    for _ in range(20):
        if node.op == "linear":
            return node.shape[-1]
        if not node.inputs:
            break
        node = graph[node.inputs[0]]
    return 0


def _find_product(context: RuleContext, index: int) -> tuple[int, float | None] | None:
    """Return the product of queries and keys before a softmax, and the factor of the scores.

    The factor is None if an operation that is not a constant factor changes the scores.
    """
    graph = context.graph
    factor: float | None = 1.0
    node = graph[index]
    for _ in range(40):
        if is_activation_product(graph, node):
            numbers = [o.value for o in node.operands if o.kind == "number"]
            is_plain = all(v in (0, 1, None) for v in numbers)
            return node.index, factor if is_plain else None
        if node.op not in PLAIN_OPS | {"softmax"}:
            constant = _constant_factor(node)
            factor = None if factor is None or constant is None else factor * constant
        products = [i for i in node.inputs if graph[i].last_mixing >= 0]
        if not products:
            return None
        node = graph[max(products, key=lambda i: graph[i].size)]
    return None


def _is_scaled_stream(context: RuleContext, block: AddAnalysis, index: int) -> bool:
    """Return whether queries or keys are normalized or rescaled, or could be."""
    graph = context.graph
    visited, waiting = {index}, [index]
    has_matrix = False
    while waiting:
        node = graph[waiting.pop()]
        if node.index in context.norms and node.index not in block.entry_norms:
            return not has_matrix
        names = context.weight_names(node.index)
        if is_mixing(node.op):
            has_matrix = True
            operands = [o for o in node.operands if o.kind == "node" and graph[o.node].learned]
            if any(graph[o.node].op not in PASS_THROUGH | SLICES for o in operands):
                return True  # the weight itself is rescaled
            if node.op not in ("linear", "addmm", "matmul", "einsum", "bmm", "mm") or not names:
                return True
            if _has_constant_factor(context, block, node.index):
                return True
            continue
        is_rotation = node.op == "mul" and not names and _is_rotation(context, node)
        is_plain = node.op in PLAIN_OPS and (not names or node.op in ("add", "cat"))
        if not (is_plain or is_rotation or _constant_factor(node) == 1):
            return True
        near = [
            i for i in node.inputs if i in block.add.path or _is_other_stream(context, block, i)
        ]
        new = [i for i in near if i not in visited]
        visited.update(new)
        waiting += new
    return not has_matrix


def _is_other_stream(context: RuleContext, block: AddAnalysis, index: int) -> bool:
    """Return whether a node belongs to the keys that a cross-attention reads."""
    is_cross = block.kind == "cross-attention" and index != block.add.fork
    return is_cross and context.graph[index].last_mixing >= 0


def _constant_factor(node: Node) -> float | None:
    """Return the positive number that an operation multiplies or divides by; None if none."""
    factors = [o for o in node.operands if o.kind != "node"]
    if node.op not in ("mul", "div") or len(factors) != 1 or math.prod(factors[0].shape) != 1:
        return None
    (operand,) = factors
    if operand.kind == "weight" or operand.value is None or operand.value <= 0:
        return None  # a learned factor may bound the scores later
    return operand.value if node.op == "mul" else 1 / operand.value


def _is_rotation(context: RuleContext, node: Node) -> bool:
    """Return whether a factor is a table with an entry for each token, as in rotary positions."""
    sizes = [
        math.prod(o.shape or (context.graph[o.node].shape if o.kind == "node" else ()))
        for o in node.operands
        if o.kind != "number"
    ]
    return len(sizes) == 2 and min(sizes) >= max(node.shape[-2:])


def _has_constant_factor(context: RuleContext, block: AddAnalysis, index: int) -> bool:
    """Return whether the input of a projection is rescaled after the entry norm."""
    graph = context.graph
    for start in graph[index].inputs:
        for _, scales in graph.trace_back(start)[-1:]:
            if any(scale.size == 1 and scale.value != 1 for scale in scales):
                return True
    return False


def _is_scaled_by_init(context: RuleContext, scores: Scores) -> bool:
    """Return whether the initial query and key weights are smaller than those of the values.

    With d features, 1 / sqrt(d) may be part of either matrix or of both; halfway there suffices.
    Queries that start smaller than keys by most of that factor show it as well.
    """
    deviations: dict[str, float] = {}
    for name, role in find_weight_roles(context.analysis, scores.block).items():
        weight = context.weights[name].detach().float()
        if role == "qkv":
            if weight.dim() != 2:
                return True
            axis = 0 if weight.shape[0] > weight.shape[1] else 1
            if weight.shape[axis] % 3:
                return False
            parts = weight.chunk(3, axis)
            return _is_smaller([float(p.std()) for p in parts], scores.head_dim)
        deviations.setdefault(role, float(weight.std()))
    roles = [deviations.get(role, math.nan) for role in ("query", "key", "value")]
    return _is_smaller(roles, scores.head_dim)


def _is_smaller(deviations: list[float], dim: int) -> bool:
    query, key, value = deviations
    if any(map(math.isnan, deviations)) or not value:
        return True
    return query * key < value**2 * dim**-0.25 or query < key * dim**-0.375
