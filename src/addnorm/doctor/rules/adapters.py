"""Adapters: trainable side paths of frozen matrices, which must start at zero.

y = frozen(x) + b(a(x))          LoRA: b starts at zero
y = frozen(x) + b(e * a(x))      AdaLoRA: e starts at zero
"""

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.graph.ops import PASS_THROUGH, PRODUCT
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext

MIN_ADAPTERS = 2
MAX_STEPS = 12


def check_adapters(context: RuleContext) -> Finding | None:
    """Check that some factor of each low-rank side path of a frozen matrix starts at zero.

    Trained adapters are not zero: gains of norms that were trained show that weights were loaded.
    """
    found = [names for node in context.graph if (names := _read_adapter(context, node))]
    open_ones = [n for n in found if all(bool(context.weights[w].detach().any()) for w in n)]
    if len(open_ones) < MIN_ADAPTERS or len(open_ones) < len(found):
        return None
    return Finding(
        "scale_without_init", "warning", open_ones[0][0].rpartition(".")[0],
        f"{len(open_ones)} trainable low-rank paths beside frozen matrices do not start at zero, "
        "so that they change the frozen model at once; start one of their factors at zero, as the "
        "second matrix of LoRA",
        {"weights": list(open_ones[0]), "adapters": len(open_ones)},
    )  # fmt: skip


def _read_adapter(context: RuleContext, node: Node) -> tuple[str, ...]:
    """Return the weights of the low-rank path that a sum adds to a frozen matrix; or nothing."""
    graph = context.graph
    if node.op != "add" or len(node.inputs) != 2 or not context.is_used(node.index):
        return ()
    for base, side in (node.inputs, node.inputs[::-1]):
        matrix = graph[base]
        names = [n for n in context.weight_names(base) if context.weights[n].dim() == 2]
        if matrix.op != "linear" or len(names) != 1 or context.is_trainable(names[0]):
            continue
        weights = _side_weights(context, side, start=matrix.inputs[0])
        sizes = [min(context.weights[n].shape) for n in weights if context.weights[n].dim() == 2]
        is_narrow = len(sizes) > 1 and max(sizes) * 2 <= min(context.weights[names[0]].shape)
        if is_narrow and all(map(context.is_trainable, weights)):
            return tuple(weights)
    return ()


def _side_weights(context: RuleContext, index: int, *, start: int) -> list[str]:
    """Return the weights of a chain of products from a start to a node; empty if it is none."""
    graph: Graph = context.graph
    names: list[str] = []
    for _ in range(MAX_STEPS):
        if index == start:
            return names
        node = graph[index]
        if len(node.inputs) != 1 or node.op not in PASS_THROUGH | PRODUCT | {
            "linear",
            "mul",
            "div",
        }:
            return []
        names += context.weight_names(index)
        index = node.inputs[0]
    return []
