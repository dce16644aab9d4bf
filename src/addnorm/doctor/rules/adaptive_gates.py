"""Rule `adaptive_gates`: gates of adaLN-Zero that do not start at zero.

    shift, scale, gate = linear(condition).chunk(3, -1)
    x = x + gate * f(norm(x) * (1 + scale) + shift)

Matrix and bias of the linear layer start at zero, so that every block starts as the identity.
"""

import math
from collections.abc import Iterator

from torch import Tensor

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import PASS_THROUGH, SLICES
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

MIN_BLOCKS = 2
MAX_STEPS = 12


@rule("adaptive_gates")
def adaptive_gates(context: RuleContext) -> Iterator[Finding]:
    """Report gates from the matrix that also modulates the norm, if it starts with random values.

    Trained matrices are not reported: their parts have different deviations.
    """
    found = [(block, name) for block in context.blocks if (name := _gate_matrix(context, block))]
    random = [name for _, name in found if _is_fresh(context.weights[name].detach().float())]
    if len(random) < MIN_BLOCKS or len(random) < len(found):
        return
    weight = context.weights[random[0]].detach().float()
    yield Finding(
        "adaptive_gates", "warning", random[0].rpartition(".")[0],
        f"the gates of {len(found)} branches come from the matrices that also shift and scale the "
        f"norms, as in adaLN-Zero, but these start with the deviation {float(weight.std()):.2g}; "
        "start matrix and bias at zero, so that each block starts as the identity",
        {"weights": list(dict.fromkeys(random))[:4], "branches": len(found)},
    )  # fmt: skip


def _gate_matrix(context: RuleContext, block: AddAnalysis) -> str | None:
    """Return the matrix whose output multiplies a branch and modulates its norm; None if none."""
    graph, node = context.graph, context.graph[block.add.branch]
    for _ in range(MAX_STEPS):
        if node.op == "mul" and len(node.inputs) == 2:
            break
        if node.op not in PASS_THROUGH | SLICES or not node.inputs:
            return None
        node = graph[node.inputs[0]]
    else:
        return None
    outside = [i for i in node.inputs if i not in block.add.path]
    if len(outside) != 1 or graph[outside[0]].size >= node.size:
        return None
    gate = _source_matrix(context, outside[0])
    if gate is None:
        return None
    modulating = {
        source
        for index in block.add.path - {block.add.fork}
        if graph[index].op in ("mul", "add") and graph[index].index != node.index
        for other in graph[index].inputs
        if other not in block.add.path and (source := _source_matrix(context, other)) is not None
    }
    return gate if gate in modulating else None


def _source_matrix(context: RuleContext, index: int) -> str | None:
    """Return the matrix of the linear layer that a chunk, perhaps plus 1, comes from."""
    node = context.graph[index]
    for _ in range(MAX_STEPS):
        if node.op in ("linear", "addmm"):
            names = [n for n in context.weight_names(node.index) if context.weights[n].dim() == 2]
            return names[0] if len(names) == 1 else None
        is_shifted = node.op == "add" and len(node.inputs) == 1
        if not (is_shifted or node.op in PASS_THROUGH | SLICES) or len(node.inputs) != 1:
            return None
        node = context.graph[node.inputs[0]]
    return None


def _is_fresh(weight: Tensor) -> bool:
    """Return whether all parts of a matrix are draws of one distribution, as before training."""
    parts = [part for part in weight.chunk(6, 0) if part.numel() > 1]
    deviations = [float(part.std()) for part in parts]
    whole = float(weight.std())
    tolerance = 5 / math.sqrt(2 * min(part.numel() for part in parts))
    return whole > 0 and all(abs(d / whole - 1) < tolerance for d in deviations)
