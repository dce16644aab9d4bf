"""Rules `wrong_softmax_axis` and `double_softmax`: weights that are normalized wrongly."""

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
MAX_STEPS_BETWEEN = 4
RESHAPES = frozenset({"view", "reshape", "unflatten", "view_as", "reshape_as"})
BEFORE_SOFTMAX = PASS_THROUGH | SLICES | {"mul", "div", "add", "sub"}


@rule("wrong_softmax_axis")
def wrong_softmax_axis(context: RuleContext) -> Iterator[Finding]:
    """Report softmaxes of scores along another axis than the one that is summed with the values.

    Silent if the weights are divided by a sum afterwards, as in slot attention, or transposed. Also
    weights of the one chosen expert that are divided by their own sum: all are 1.
    """
    graph = context.graph
    if own := [node for node in graph if _is_divided_by_itself(graph, node)]:
        yield Finding(
            "wrong_softmax_axis", "warning", own[0].path,
            "the weight of the one expert that is chosen for a token is divided by its own sum, so "
            "all weights are 1 and the router gets no gradient; do not normalize a single weight",
            {"shape": own[0].shape, "divisions": len(own)},
        )  # fmt: skip
    wrong, joint, single = [], [], []
    for node in graph:
        if node.op != "softmax":
            continue
        dim = node.detail.get("dim", _implicit_dim(node))
        if not isinstance(dim, int):
            continue
        if _is_of_one_column(context, node, dim):
            single.append(node)
        if not _is_scores(graph, node):
            continue
        summed = _find_summed_axes(graph, node)
        if summed and dim % len(node.shape) not in summed:
            wrong.append((node, dim, summed))
        elif _is_split_unsummed(graph, node, dim % len(node.shape)):
            joint.append(node)
    if wrong:
        node, dim, summed = wrong[0]
        yield Finding(
            "wrong_softmax_axis", "error", node.path,
            f"the softmax normalizes axis {dim % len(node.shape)} of the scores, and values are "
            f"summed along axis {summed[0]}, so the weights of a query do not sum to 1; use "
            f"softmax(dim={summed[0]})",
            {"shape": node.shape, "attentions": len(wrong)},
        )  # fmt: skip
    elif joint:
        yield Finding(
            "wrong_softmax_axis", "error", joint[0].path,
            "the softmax runs over several axes of the scores together, such as heads and keys, "
            "and values are summed along one of them, so the weights of a head do not sum to 1; "
            "apply the softmax to the axis of keys only",
            {"shape": joint[0].shape, "attentions": len(joint)},
        )  # fmt: skip
    if single:
        yield Finding(
            "wrong_softmax_axis", "error", single[0].path,
            "the softmax runs over the one number that a matrix with one column gives each token, "
            "so all weights are 1 and the matrix does not learn; normalize over the tokens, as "
            "softmax(dim=1)",
            {"shape": single[0].shape, "softmaxes": len(single)},
        )  # fmt: skip


def _implicit_dim(node: Node) -> int:
    """Return the axis that torch chooses for a softmax without `dim`."""
    return 0 if len(node.shape) in (0, 1, 3) else 1


@rule("double_softmax")
def double_softmax(context: RuleContext) -> Iterator[Finding]:
    """Report a softmax of the result of another softmax, which makes all weights nearly equal."""
    graph = context.graph
    pairs = []
    for node in graph:
        if node.op == "softmax" and node.inputs:
            before = node
            for _ in range(MAX_STEPS_BETWEEN):
                before = graph[before.inputs[0]]
                if before.op not in SAME_AXES or not before.inputs:
                    break
            if before.op == "softmax" and before.shape == node.shape:
                pairs.append(node)
    if pairs:
        yield Finding(
            "double_softmax", "error", pairs[0].path,
            f"{len(pairs)} softmaxes are applied to weights that already are a softmax, so that "
            "all weights become nearly equal; apply one of them only",
            {"shape": pairs[0].shape, "softmaxes": len(pairs)},
        )  # fmt: skip


def _is_divided_by_itself(graph: Graph, node: Node) -> bool:
    """Return whether the one choice of a topk is divided by its sum over that choice."""
    tensors = [o.node for o in tensor_operands(node) if o.kind == "node"]
    if node.op != "div" or len(tensors) != 2 or node.shape[-1:] != (1,):
        return False
    own, total = tensors[0], graph[tensors[1]]
    while total.op in ("add", "clamp", "clamp_min") and len(total.inputs) == 1:
        total = graph[total.inputs[0]]
    chosen = graph[own]
    while chosen.op in SAME_AXES and len(chosen.inputs) == 1:
        chosen = graph[chosen.inputs[0]]
    return total.op == "sum" and own in total.inputs and chosen.op == "topk"


def _is_of_one_column(context: RuleContext, node: Node, dim: int) -> bool:
    """Return whether a softmax normalizes the single output feature of a matrix."""
    graph, axis = context.graph, dim % max(len(node.shape), 1)
    if len(node.shape) < 2 or node.shape[axis] != 1 or axis != len(node.shape) - 1:
        return False
    for _ in range(8):
        if not node.inputs or node.op not in SAME_AXES | {"softmax", "mul", "div", "add", "sub"}:
            return False
        node = graph[node.inputs[0]]
        names = [n for n in context.weight_names(node.index) if context.weights[n].dim() == 2]
        if node.op in PRODUCT | {"linear"} and names:
            shape = context.weights[names[0]].shape
            return shape[0 if node.op == "linear" else -1] == 1 and node.shape[-1] == 1
    return False


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


def _is_split_unsummed(graph: Graph, node: Node, dim: int) -> bool:
    """Return whether the softmax runs over joined axes of which the values are summed along some.

    softmax(scores.flatten(2)).view(B, Q, H, K) @ values    sums over K, but not over H
    """
    if len(node.users) != 1 or graph[node.users[0]].op not in RESHAPES:
        return False
    view = graph[node.users[0]]
    if view.shape[:dim] != node.shape[:dim] or dim != len(node.shape) - 1:
        return False
    split = {i for i in range(dim, len(view.shape)) if view.shape[i] > 1}
    summed = set(_find_summed_axes(graph, view))
    return len(split) > 1 and bool(summed & split) and not split <= summed
