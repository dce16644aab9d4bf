"""Rules `constant_weights` and `zero_factors`: weights that cannot learn."""

import math
from collections.abc import Iterator

from torch import Tensor

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.nodes import Operand
from addnorm.doctor.graph.ops import NAMED_NORMS, SCALES, is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

ZERO_AT_ZERO = frozenset({"relu", "gelu", "silu", "tanh", "elu", "leaky_relu", "relu6", "mish"})
"""Activations that return 0 for 0, so that a zero matrix before them closes the one after."""
MIN_MATRICES = 2
"""Matrices of a branch, in series, that must be constant. One may be zero on purpose."""


@rule("constant_weights")
def constant_weights(context: RuleContext) -> Iterator[Finding]:
    """Report branches all of whose matrices are constant, and models without any gradient.

    If every matrix of a branch is zero, each of them multiplies the gradient of the others by
    zero. If each has one other value, all features stay equal. A zero in the last matrix, a gate,
    or one factor of LoRA is healthy: its own gradient is not zero.
    """
    if constant := find_constant_branches(context):
        names = context.branch_weights(constant[0])
        value = float(context.weights[names[0]].detach().flatten()[0])
        reason = (
            "multiplies the gradient of the others by zero" if value == 0 else
            "keeps all features equal"
        )  # fmt: skip
        yield Finding(
            "constant_weights", "error", context.module_path(constant[0]),
            f"all matrices in {len(constant)} of {len(context.blocks)} branches are constant, "
            f"which {reason}, so they do not learn; initialize them with random values",
            {"weights": list(names[:4]), "value": value},
        )  # fmt: skip
    elif closed := [block for block in context.blocks if _is_closed(context, block)]:
        names = context.branch_weights(closed[0])
        yield Finding(
            "constant_weights", "error", context.module_path(closed[0]),
            f"{len(closed)} of {len(context.blocks)} branches are multiplied by a constant zero, "
            "so they do not depend on their input and matrices get no gradient; set the constant, "
            "for instance a buffer that was left uninitialized",
            {"weights": list(names[:4]), "largest gradient": 0.0},
        )  # fmt: skip
    elif _is_dead(context):
        yield Finding(
            "constant_weights", "error", "",
            "the gradient of every matrix and gain is zero, so the model cannot learn; initialize "
            "weights and gains with other values than zero",
            {"weights": len(context.trace.gradients.weights), "largest gradient": 0.0},
        )  # fmt: skip


@rule("zero_factors")
def zero_factors(context: RuleContext) -> Iterator[Finding]:
    """Report two zero matrices in series, such as both factors of LoRA, or around an activation.

    Each of them multiplies the gradient of the other by zero. One zero factor is healthy. Branches
    without any other matrix are those of `constant_weights`.
    """
    pairs = list(_iter_zero_pairs(context))
    if pairs and not find_constant_branches(context):
        yield Finding(
            "zero_factors", "error", pairs[0][0].rpartition(".")[0],
            f"{len(pairs)} pairs of matrices in series are both zero, so neither gets a gradient "
            "and they never learn; initialize the first of each with random values",
            {"weights": list(pairs[0]), "pairs": len(pairs)},
        )  # fmt: skip


def find_constant_branches(context: RuleContext) -> list[AddAnalysis]:
    """Return the blocks all of whose matrices are constant."""
    return [block for block in context.blocks if _is_constant(context, block)]


def _iter_zero_pairs(context: RuleContext) -> Iterator[tuple[str, str]]:
    """Yield the names of trainable zero matrices of which the second reads the first."""
    graph = context.graph
    zeros: dict[int, str] = {}
    for node in graph:
        names = [n for n in context.weight_names(node.index) if context.weights[n].dim() > 1]
        if not is_mixing(node.op) or len(names) != 1 or not context.is_trainable(names[0]):
            continue
        weight = context.weights[names[0]]
        if weight.device.type != "meta" and not bool(weight.detach().any()):
            zeros[node.index] = names[0]
    for index, name in zeros.items():
        for source in graph[index].inputs:
            before = graph.trace_back(source)[-1][0]
            while graph[before].op in ZERO_AT_ZERO and len(graph[before].inputs) == 1:
                before = graph.trace_back(graph[before].inputs[0])[-1][0]
            if before in zeros and not _has_bias(context, before):
                yield zeros[before], name


def _has_bias(context: RuleContext, index: int) -> bool:
    names = context.weight_names(index)
    return any(context.weights[n].dim() == 1 and bool(context.weights[n].any()) for n in names)


def _is_closed(context: RuleContext, block: AddAnalysis) -> bool:
    """Return whether a constant zero, that no training changes, closes a branch."""
    gradients = context.trace.gradients.weights
    names = [n for n in context.branch_weights(block) if context.is_trainable(n)]
    is_dead = any(gradients.get(name) == 0 for name in names)
    if not names or not (is_dead or context.add_stats(block.add).get("branch_variance") == 0):
        return False
    return any(
        context.graph[index].op == "mul" and any(map(_is_zero, context.graph[index].operands))
        for index in block.add.path - {block.add.fork}
    )


def _is_zero(operand: Operand) -> bool:
    is_scalar = operand.kind == "constant" and math.prod(operand.shape) == 1
    return is_scalar and operand.value == 0


def _is_constant(context: RuleContext, block: AddAnalysis) -> bool:
    """Return whether all matrices of a branch are trainable and constant."""
    names = context.branch_weights(block)
    weights = [context.weights[name] for name in names]
    if len(weights) < MIN_MATRICES or not all(map(context.is_trainable, names)):
        return False
    return all(_has_one_value(w) for w in weights)


def _has_one_value(weight: Tensor) -> bool:
    values = weight.detach()
    if values.device.type == "meta" or values.numel() < 2:
        return False
    low, high = values.flatten()[:2].tolist()
    return low == high and bool((values == low).all())


def _is_dead(context: RuleContext) -> bool:
    """Return whether every matrix and factor gets a gradient of zero; biases do not count."""
    gradients = context.trace.gradients.weights
    factors = _find_factors(context)
    found = [g for name, g in gradients.items() if context.weights[name].dim() > 1]
    found += [gradients[name] for name in factors if name in gradients]
    return bool(found) and bool(context.blocks) and not any(found)


def _find_factors(context: RuleContext) -> set[str]:
    """Return the gains of norms and other weights that activations are multiplied by."""
    names: set[str] = set()
    for node in context.graph:
        if node.op in SCALES:
            names.update(context.weight_names(node.index))
        elif node.op in NAMED_NORMS:
            names.update(context.weight_names(node.index)[:1])  # the bias comes second
    return names
