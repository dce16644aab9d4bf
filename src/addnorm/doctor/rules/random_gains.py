"""Rule `random_gains`: gains of norms that start as random numbers, or were never filled."""

from collections.abc import Iterator

from torch import Tensor

from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

MIN_FEATURES = 8
"""Fewest numbers of a gain whose signs show that it is random."""
RANDOM_SIGNS = (0.2, 0.8)
"""Share of negative numbers in gains that are drawn around zero; trained gains have one sign."""
MAX_SPREAD = 1e4
"""Ratio of the largest to the median gain above which memory was probably never filled."""
MAX_DEVIATION = 0.5
"""Deviation up to which random gains make features vanish; wider ones mostly flip signs."""


@rule("random_gains")
def random_gains(context: RuleContext) -> Iterator[Finding]:
    """Report norms whose gains are drawn around zero, as by an initialization of all weights.

    Training moves gains away from one, but hardly any changes its sign. A gain of zero, or one
    that is used as `1 + w`, is not random.
    """
    gains = {name: norm for norm in context.iter_norms() for name in direct_gains(context, norm)}
    wild = [name for name in gains if _is_wild(context.weights[name].detach().float())]
    if wild:
        largest = float(context.weights[wild[0]].detach().abs().max())
        yield Finding(
            "random_gains", "error", gains[wild[0]].path,
            f"the gains of {len(wild)} of {len(gains)} norms differ by powers of ten (largest "
            f"{largest:.2g}), as memory that was never filled; start gains at 1 and biases at 0",
            {"gains": wild[:4], "largest": largest},
        )  # fmt: skip
        return
    random = [name for name in gains if _is_random(context.weights[name].detach().float())]
    if not random or len(random) * 2 < len(gains):
        return
    weight = context.weights[random[0]].detach().float()
    yield Finding(
        "random_gains", "error", gains[random[0]].path,
        f"the gains of {len(random)} of {len(gains)} norms are random numbers around zero "
        f"(deviation {float(weight.std()):.2g}), so the norms scale every feature by noise; start "
        "gains at 1 and biases at 0",
        {"gains": random[:4], "mean": float(weight.mean()), "deviation": float(weight.std())},
    )  # fmt: skip


def direct_gains(context: RuleContext, norm: Norm) -> list[str]:
    """Return the weight that multiplies the result of a norm as it is."""
    node = context.graph[norm.node]
    names = [o.name for o in node.operands if o.kind == "weight"]
    if not names:
        for user in node.users:
            operands = context.graph[user].operands if context.graph[user].op == "mul" else ()
            names += [o.name for o in operands if o.kind == "weight"]
    return [name for name in names[:1] if name in context.norm_weights(norm)]


def _is_wild(gain: Tensor) -> bool:
    """Return whether some gains are far beyond the median, or not finite."""
    values = gain.flatten().abs()
    if values.numel() < MIN_FEATURES:
        return False
    return not float(values.max()) <= MAX_SPREAD * max(float(values.median()), 1.0)


def _is_random(gain: Tensor) -> bool:
    values = gain.flatten()
    if values.numel() < MIN_FEATURES or not bool((values != values[0]).any()):
        return False
    if float(values.std()) > MAX_DEVIATION:
        return False
    low, high = RANDOM_SIGNS
    return low < float((values < 0).float().mean()) < high
