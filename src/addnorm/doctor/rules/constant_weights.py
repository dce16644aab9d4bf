"""Rule `constant_weights`: weights that cannot learn, because all of them are equal."""

from collections.abc import Iterator

from torch import Tensor

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import NAMED_NORMS, SCALES
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule

MIN_MATRICES = 2
"""Matrices of a branch, in series, that must be constant. One may be zero on purpose."""


@rule("constant_weights")
def constant_weights(context: RuleContext) -> Iterator[Finding]:
    """Report branches all of whose matrices are constant, and models without any gradient.

    If every matrix of a branch is zero, each of them multiplies the gradient of the others by
    zero. If each has one other value, all features stay equal. A zero in the last matrix, a gate,
    or one factor of LoRA is healthy: its own gradient is not zero.
    """
    constant = [block for block in context.blocks if _is_constant(context, block)]
    if constant:
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
    elif _is_dead(context):
        yield Finding(
            "constant_weights", "error", "",
            "the gradient of every matrix and gain is zero, so the model cannot learn; initialize "
            "weights and gains with other values than zero",
            {"weights": len(context.trace.weight_gradients), "largest gradient": 0.0},
        )  # fmt: skip


def _is_constant(context: RuleContext, block: AddAnalysis) -> bool:
    """Whether all matrices of a branch are trainable and constant."""
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
    """Whether every matrix and every factor gets a gradient of zero; biases alone do not help."""
    gradients = context.trace.weight_gradients
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
