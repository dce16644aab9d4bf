"""DeepNorm's and Admin's scales: on the right term, and with the start weights they need."""

import math
from collections.abc import Iterator
from statistics import median

from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule

MIN_EXPLICIT_SCALE = 1.05
"""Above 1 by more than rounding: a factor that somebody wrote."""
MIN_DEEPNORM_ALPHA = 1.15
"""Below DeepNorm's alpha at any depth: 2 ** (1 / 4) = 1.19 with one layer."""
INIT_TOLERANCE_FACTOR = 1.3
"""How far above beta start weights may lie. Plain Xavier lies at alpha * sqrt(2) > 1.6, and the
spread of a matrix of a thousand numbers is known to 2 %."""


@rule("scale_on_branch")
def scale_on_branch(context: RuleContext) -> Iterator[Finding]:
    """A factor above 1 belongs on the shortcut; on the branch it makes things worse."""
    for reading in context.blocks:
        if context.wiring(reading) not in ("post_ln", "false_pre_ln"):
            continue
        # What is learned may stand where training left it.
        written = (s for s in reading.scales if s.kind == "constant" or not _is_trained(context))
        on_branch = _scale_product(tuple(written))
        if on_branch > MIN_EXPLICIT_SCALE and _scale_product(reading.add.shortcut_scales) <= 1:
            yield Finding(
                "scale_on_branch", "error", context.module_path(reading),
                f"Post-LN multiplies the branch by {on_branch:.3g}, N(x + {on_branch:.3g} f(x)); "
                "DeepNorm and Admin scale the shortcut: N(alpha * x + f(x))",
                {"branch": on_branch, "shortcut": _scale_product(reading.add.shortcut_scales)},
            )  # fmt: skip


def _scale_product(scales: tuple[Scale, ...]) -> float:
    """The product of the factors whose size is known; 1 without any."""
    return math.prod(abs(s.value) for s in scales if s.value is not None and s.kind != "input")


@rule("scale_without_init")
def scale_without_init(context: RuleContext) -> Iterator[Finding]:
    """DeepNorm's alpha without its beta: alpha * beta is 0.7 in every row of the paper's table."""
    scaled = [
        (reading, factor)
        for reading in context.blocks
        if context.wiring(reading) == "post_ln"
        and all(s.kind == "constant" for s in reading.add.shortcut_scales)
        and (factor := _scale_product(reading.add.shortcut_scales)) > MIN_DEEPNORM_ALPHA
    ]
    if not scaled:
        return
    ratios, wanted = [], []
    for reading, factor in scaled:
        if reading.kind != "feed-forward":
            continue
        for name in context.branch_weights(reading):
            weight = context.weights[name].detach().float()
            if weight.dim() == 2 and min(weight.shape) > 1:
                fan = math.sqrt(2 / sum(weight.shape))
                ratios.append(float(weight.std()) / fan)
                wanted.append(0.707 / factor)
    if not ratios or median(ratios) <= INIT_TOLERANCE_FACTOR * median(wanted):
        return
    if _is_trained(context):
        context.trace.notes.append(
            "the shortcut is scaled as in DeepNorm; whether the weights started as it wants cannot "
            "be said of trained ones"
        )
        return
    yield Finding(
        "scale_without_init", "warning", context.module_path(scaled[0][0]),
        f"the shortcut is scaled by {scaled[0][1]:.3g} as in DeepNorm, but the feed-forward weights"
        f" start {median(ratios):.2f} times as large as Xavier's, where DeepNorm wants "
        f"{median(wanted):.2f}; multiply value, output and feed-forward weights by beta at start",
        {"alpha": scaled[0][1], "gain": median(ratios), "beta": median(wanted)},
    )  # fmt: skip


def _is_trained(context: RuleContext) -> bool:
    """Whether the entries of a norm's gain or bias differ: at start they are all the same."""
    names = {name for norm in context.iter_norms() for name in context.norm_weights(norm)}
    weights = (context.weights[name].detach() for name in names)
    return any(bool((w != w.flatten()[0]).any()) for w in weights if w.numel() > 1)
