"""Rule `inverted_norm`: norms that multiply by the magnitude instead of dividing by it."""

from collections.abc import Iterator

from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.graph.ops import REDUCTIONS
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
