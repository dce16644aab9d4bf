"""Rules `inverted_norm` and `unrooted_norm`: norms with a wrong power of the magnitude."""

from collections.abc import Iterator

from addnorm.doctor.analysis.handwritten_norms import trace_to_base
from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.graph.ops import PASS_THROUGH, REDUCTIONS
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

MAX_STEPS = 24
RECIPROCALS = frozenset({"rsqrt", "reciprocal", "rdiv"})


@rule("inverted_norm")
def inverted_norm(context: RuleContext) -> Iterator[Finding]:
    """Report norms written by hand as `x / rsqrt(mean(x * x))` or `x * sqrt(mean(x * x))`."""
    wrong = [norm for norm in context.iter_norms() if _multiplies(context.graph, norm)]
    if wrong:
        yield Finding(
            "inverted_norm", "error", wrong[0].path,
            f"{len(wrong)} norms multiply their input by its own magnitude instead of dividing by "
            "it, so large inputs grow; use x * rsqrt(...) or x / sqrt(...)",
            {"norms": [norm.path for norm in wrong[:4]], "kind": wrong[0].kind},
        )  # fmt: skip


def _multiplies(graph: Graph, norm: Norm) -> bool:
    """Return whether the power of the magnitude in a norm written by hand is positive."""
    node = graph[norm.node]
    if not norm.by_hand or node.op not in ("mul", "div") or len(node.inputs) != 2:
        return False
    small = min(node.inputs, key=lambda index: graph[index].size)
    if graph[small].size == node.size:
        return False
    is_positive = node.op == "mul" or node.operands[0].node == small
    node = graph[small]
    for _ in range(MAX_STEPS):
        if node.op in REDUCTIONS:
            return is_positive
        if _is_reciprocal(graph, node):
            is_positive = not is_positive
        if not node.inputs:
            return False
        node = graph[min(node.inputs, key=lambda index: graph[index].size)]
    return False


def _is_reciprocal(graph: Graph, node: Node) -> bool:
    """Return whether an operation inverts the power of its input."""
    if node.op == "pow":
        exponent = node.detail.get("exponent")
        return isinstance(exponent, float | int) and exponent < 0
    is_denominator = node.op == "div" and node.operands[0].kind != "node"
    return node.op in RECIPROCALS or is_denominator


@rule("unrooted_norm")
def unrooted_norm(context: RuleContext) -> Iterator[Finding]:
    """Report norms written by hand that divide by the variance instead of its root."""
    graph = context.graph
    wrong = [node for node in graph if node.active and _divides_by_variance(graph, node)]
    if wrong:
        yield Finding(
            "unrooted_norm", "error", wrong[0].path,
            f"{len(wrong)} norms divide their input by its variance or mean square instead of the "
            "root of it, so that large inputs become small; take the root",
            {"norms": list(dict.fromkeys(node.path for node in wrong))[:4]},
        )  # fmt: skip


def _divides_by_variance(graph: Graph, node: Node) -> bool:
    """Return whether a node is `x / var(x)` or `x / mean(x * x)`, with an epsilon or without."""
    if node.op != "div" or len(node.inputs) != 2 or len(node.operands) != 2:
        return False
    value, divisor = (o.node for o in node.operands)
    if graph[divisor].size * 2 > node.size:
        return False
    step = graph[divisor]
    for _ in range(MAX_STEPS):
        is_guard = step.op in ("add", "clamp", "clamp_min") or step.op in PASS_THROUGH
        if step.op in ("var", "mean", "sum") or not is_guard or len(step.inputs) != 1:
            break
        step = graph[step.inputs[0]]
    if step.op not in ("var", "mean", "sum") or len(step.inputs) != 1:
        return False
    reduced = graph[step.inputs[0]]
    is_square = reduced.op in ("pow", "square") or (
        reduced.op == "mul" and len({o.node for o in reduced.operands}) == 1
    )
    if step.op != "var" and not is_square:
        return False
    if reduced.op == "pow" and reduced.detail.get("exponent") not in (2, 2.0):
        return False
    bases = {trace_to_base(graph, i)[0][-1] for i in (value, step.inputs[0])}
    return len(bases) == 1
