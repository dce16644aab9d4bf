"""Rule `wrong_softmax_axis`: attention weights that are normalized over the queries."""

from collections.abc import Iterator

from addnorm.doctor.graph.contractions import (
    find_operand_axes,
    is_activation_product,
    tensor_operands,
)
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.graph.ops import CASTS, DROPOUT, PASS_THROUGH, PRODUCT, SLICES
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

SAME_AXES = DROPOUT | CASTS | {"contiguous", "clone", "alias", "identity"}
"""Operations that keep the order of axes."""
BEFORE_SOFTMAX = PASS_THROUGH | SLICES | {"mul", "div", "add", "sub"}


@rule("wrong_softmax_axis")
def wrong_softmax_axis(context: RuleContext) -> Iterator[Finding]:
    """Report softmaxes of scores along another axis than the one that is summed with the values.

    Silent if the weights are divided by a sum afterwards, as in slot attention, or transposed.
    """
    graph = context.graph
    wrong = []
    for node in graph:
        dim = node.detail.get("dim")
        if node.op != "softmax" or not isinstance(dim, int) or not _is_scores(graph, node):
            continue
        summed = _find_summed_axes(graph, node)
        if summed and dim % len(node.shape) not in summed:
            wrong.append((node, dim, summed))
    if wrong:
        node, dim, summed = wrong[0]
        yield Finding(
            "wrong_softmax_axis", "error", node.path,
            f"the softmax normalizes axis {dim % len(node.shape)} of the scores, and values are "
            f"summed along axis {summed[0]}, so the weights of a query do not sum to 1; use "
            f"softmax(dim={summed[0]})",
            {"shape": node.shape, "attentions": len(wrong)},
        )  # fmt: skip


def _is_scores(graph: Graph, node: Node) -> bool:
    """Return whether the input of a softmax is a product of two activations."""
    for _ in range(20):
        if is_activation_product(graph, node):
            return True
        if not node.inputs or node.op not in BEFORE_SOFTMAX | {"softmax"}:
            return False
        node = graph[max(node.inputs, key=lambda index: graph[index].size)]
    return False


def _find_summed_axes(graph: Graph, node: Node) -> tuple[int, ...]:
    """Return the axes of attention weights that their product with the values sums over.

    Empty if the weights are used in several ways, or if another operation comes first.
    """
    while len(node.users) == 1 and graph[node.users[0]].op in SAME_AXES:
        node = graph[node.users[0]]
    if len(node.users) != 1 or graph[node.users[0]].op not in PRODUCT:
        return ()
    product = graph[node.users[0]]
    operands = [o.node if o.kind == "node" else -1 for o in tensor_operands(product)]
    if operands.count(node.index) != 1 or not is_activation_product(graph, product):
        return ()
    axes = find_operand_axes(graph, product.index, position=operands.index(node.index))
    return () if axes is None else axes.summed
