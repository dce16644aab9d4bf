"""Rules `scale_on_branch` and `scale_without_init`: incomplete implementations of DeepNorm."""

import math
from collections.abc import Iterator
from statistics import median

from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule

MIN_EXPLICIT_SCALE = 1.05
"""Smallest factor on a branch that counts as written on purpose, above rounding."""
MIN_DEEPNORM_ALPHA = 1.15
"""Smallest factor on a skip that counts as DeepNorm: its alpha is 2 ** (1 / 4) = 1.19 or more."""
INIT_TOLERANCE_FACTOR = 1.3
"""Initial weights may exceed beta by this factor. Plain Xavier exceeds it by
alpha * sqrt(2) > 1.6, and the standard deviation of a thousand numbers is known to 2 %."""


@rule("scale_on_branch")
def scale_on_branch(context: RuleContext) -> Iterator[Finding]:
    """Report Post-LN with a factor above 1 on the branch instead of the skip.

    DeepNorm and Admin scale the skip. On the branch the factor makes training less stable.
    """
    for block in context.blocks:
        if context.wiring(block) not in ("post_ln", "false_pre_ln"):
            continue
        # A learned factor may have any value after training.
        written = (s for s in block.scales if s.kind == "constant" or not _is_trained(context))
        on_branch = _scale_product(tuple(written))
        if on_branch > MIN_EXPLICIT_SCALE and _scale_product(block.add.shortcut_scales) <= 1:
            yield Finding(
                "scale_on_branch", "error", context.module_path(block),
                f"Post-LN scales the branch, N(x + {on_branch:.3g} * f(x)), which makes training "
                "less stable; scale the skip as DeepNorm and Admin do: N(alpha * x + f(x))",
                {"branch": on_branch, "shortcut": _scale_product(block.add.shortcut_scales)},
            )  # fmt: skip


def _scale_product(scales: tuple[Scale, ...]) -> float:
    """Return the product of the factors with a known value; 1 if there are none."""
    return math.prod(abs(s.value) for s in scales if s.value is not None and s.kind != "input")


@rule("scale_without_init")
def scale_without_init(context: RuleContext) -> Iterator[Finding]:
    """Report DeepNorm's alpha on the skip without its beta on the initial weights.

    alpha * beta is 0.7 in every row of the paper's table, so alpha alone determines beta.
    """
    scaled = [
        (block, factor)
        for block in context.blocks
        if context.wiring(block) == "post_ln"
        and all(s.kind == "constant" for s in block.add.shortcut_scales)
        and (factor := _scale_product(block.add.shortcut_scales)) > MIN_DEEPNORM_ALPHA
    ]
    if not scaled:
        return
    gains, betas = [], []
    for block, factor in scaled:
        if block.kind != "feed-forward":
            continue
        for name in context.branch_weights(block):
            weight = context.weights[name].detach().float()
            if weight.dim() == 2 and min(weight.shape) > 1:
                fan = math.sqrt(2 / sum(weight.shape))
                gains.append(float(weight.std()) / fan)
                betas.append(0.707 / factor)
    if not gains or median(gains) <= INIT_TOLERANCE_FACTOR * median(betas):
        return
    if _is_trained(context):
        context.notes.append(
            "DeepNorm's initialization was not checked: the skip is scaled as in DeepNorm, but the "
            "weights are trained"
        )
        return
    yield Finding(
        "scale_without_init", "warning", context.module_path(scaled[0][0]),
        f"the skip is scaled by {scaled[0][1]:.3g} as in DeepNorm, but the feed-forward weights "
        f"have {median(gains):.2f} times the standard deviation of Xavier instead of "
        f"{median(betas):.2f}; multiply the initial value, output and feed-forward weights by beta",
        {"alpha": scaled[0][1], "gain": median(gains), "beta": median(betas)},
    )  # fmt: skip


def _is_trained(context: RuleContext) -> bool:
    """Return whether the entries of a gain or bias differ; they are all equal at initialization."""
    names = {name for norm in context.iter_norms() for name in context.norm_weights(norm)}
    weights = (context.weights[name].detach() for name in names)
    return any(bool((w != w.flatten()[0]).any()) for w in weights if w.numel() > 1)
