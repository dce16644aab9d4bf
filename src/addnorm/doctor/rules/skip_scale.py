"""Rules `scale_on_branch` and `scale_without_init`: incomplete scales of residual connections."""

import math
from collections.abc import Iterator
from statistics import median

from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.analysis.weight_roles import FUSED_QKV, find_weight_roles
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.adapters import check_adapters
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.constant_weights import constant_weights
from addnorm.doctor.rules.probing.open_gates import negligible_branches
from addnorm.doctor.rules.random_gains import direct_gains
from addnorm.doctor.rules.scaled_init import check_init_flags, check_scaled_init

MIN_EXPLICIT_SCALE = 1.05
"""Smallest factor on a branch that counts as written on purpose, above rounding."""
MIN_DEEPNORM_ALPHA = 1.15
"""Smallest factor on a skip that counts as DeepNorm: its alpha is 2 ** (1 / 4) = 1.19 or more."""
INIT_TOLERANCE_FACTOR = 1.3
"""Initial weights may exceed beta by this factor. Plain Xavier exceeds it by
alpha * sqrt(2) > 1.6, and the standard deviation of a thousand numbers is known to 2 %."""

PLAIN_XAVIER_GAIN = 0.9
"""Deviation relative to Xavier from which attention weights count as plain Xavier. Smaller ones may
come from other defaults, such as one draw for queries, keys and values together."""
MIN_SCALE_NORM_GAIN = 0.5
"""Smallest gain of a unit norm at initialization, relative to sqrt(dim)."""
MIN_NORM_FREE_BLOCKS = 4
"""Fewest blocks of a Transformer without norms that is checked."""
MIN_SCALED_BLOCKS = 2
"""Fewest blocks with the same learned scale that are compared."""
MIN_SKIP_SCALE = 0.3
"""Smallest learned scale of a skip at initialization that keeps the stream."""
MIN_VECTOR = 8
"""Fewest numbers of a scale whose signs show that it is random."""


@rule("scale_on_branch")
def scale_on_branch(context: RuleContext) -> Iterator[Finding]:
    """Report Post-LN with a factor above 1 on the branch instead of the skip.

    DeepNorm and Admin scale the skip. On the branch the factor makes training less stable.
    """
    for block in context.blocks:
        if context.wiring(block) not in ("post_ln", "false_pre_ln"):
            continue
        # A learned factor may have any value after training.
        written = (s for s in block.scales if s.kind == "constant" or not context.has_trained_gains)
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
    """Report scales of residual connections whose initial values or weights are missing.

    DeepNorm and T-Fixup need smaller weights, ScaleNorm a large gain, ReZero and LayerScale a small
    one, Admin a profiling pass, and the scaled initialization of GPT-2 applies to every branch.
    """
    checks = (
        _check_deepnorm,
        _check_scale_norm,
        _check_branch_gains,
        _check_skip_gains,
        check_scaled_init,
        check_init_flags,
        _check_norm_free,
        _check_norm_gains,
        _check_random_scales,
        check_adapters,
    )
    findings = [finding for check in checks if (finding := check(context)) is not None]
    if findings and context.has_trained_gains:
        context.notes.append(
            "the initialization of scaled residual connections was not checked: the weights are "
            "trained"
        )
        return
    yield from findings


def _check_deepnorm(context: RuleContext) -> Finding | None:
    """Check DeepNorm's beta on the initial weights where its alpha is on the skip.

    alpha * beta is 0.7 in every row of the paper's table, so alpha alone determines beta.
    """
    scaled = [
        (block, factor)
        for block in context.blocks
        if context.wiring(block) == "post_ln"
        and all(s.kind == "constant" for s in block.add.shortcut_scales)
        and (factor := _scale_product(block.add.shortcut_scales)) > MIN_DEEPNORM_ALPHA
    ]
    gains: dict[str, list[float]] = {}
    for block, _ in scaled:
        for part, gain in _iter_gains(context, block):
            gains.setdefault(part, []).append(gain)
    if not gains:
        return None
    beta = 0.707 / median(factor for _, factor in scaled)
    limits = {"feed-forward": INIT_TOLERANCE_FACTOR * beta}
    plain = max(INIT_TOLERANCE_FACTOR * beta, PLAIN_XAVIER_GAIN)
    wrong = {
        part: median(values)
        for part, values in gains.items()
        if median(values) > limits.get(part, plain)
    }
    if not wrong:
        return None
    part, gain = next(iter(wrong.items()))
    return Finding(
        "scale_without_init", "warning", context.module_path(scaled[0][0]),
        f"the skip is scaled by {scaled[0][1]:.3g} as in DeepNorm, but the {part} weights "
        f"have {gain:.2f} times the standard deviation of Xavier instead of "
        f"{beta:.2f}; multiply the initial value, output and feed-forward weights by beta",
        {"alpha": scaled[0][1], "gain": gain, "beta": beta},
    )  # fmt: skip


def _iter_gains(context: RuleContext, block: AddAnalysis) -> Iterator[tuple[str, float]]:
    """Yield the parts of a branch that DeepNorm scales, with their deviation relative to Xavier."""
    parts = {"value": "value", "out": "output", FUSED_QKV: "value"}
    for name, role in find_weight_roles(context.analysis, block).items():
        weight = context.weights[name].detach().float()
        part = "feed-forward" if block.kind == "feed-forward" else parts.get(role)
        if part is None or weight.dim() != 2 or min(weight.shape) < 2:
            continue
        if role == FUSED_QKV:
            if weight.shape[0] != 3 * weight.shape[1]:
                continue
            weight = weight[2 * weight.shape[1] :]
        yield part, float(weight.std()) / math.sqrt(2 / sum(weight.shape))


def _check_scale_norm(context: RuleContext) -> Finding | None:
    """Check that the gain of a unit norm on the stream starts near the root of the width."""
    for block in context.blocks:
        for index in (*block.entry_norms, block.post_norm):
            norm = None if index is None else context.norms.get(index)
            if norm is None or norm.kind != "l2" or not norm.axes:
                continue
            root = math.sqrt(
                math.prod(context.graph[norm.source].shape[axis] for axis in norm.axes)
            )
            between = context.graph.nodes_between(norm.source, norm.node) - {norm.source}
            names = {n for i in between for n in context.weight_names(i)}
            names |= set(context.norm_weights(norm))
            gains = [context.weights[n] for n in sorted(names) if context.weights[n].numel() == 1]
            value = abs(float(gains[0].detach())) if gains else _constant_gain(context, norm, root)
            if value < root * MIN_SCALE_NORM_GAIN:
                return Finding(
                    "scale_without_init", "warning", norm.path,
                    f"the gain of a unit norm starts at {value:.3g}, so that features have a "
                    f"standard deviation of {value / root:.2g}; start at sqrt(dim) = {root:.3g}",
                    {"gain": value, "sqrt(dim)": root},
                )  # fmt: skip
    return None


def _constant_gain(context: RuleContext, norm: Norm, default: float) -> float:
    """Return the value of a gain vector of which all numbers are equal; else a default."""
    for name in direct_gains(context, norm):
        values = context.weights[name].detach().flatten()
        if values.numel() > 1 and bool((values == values[0]).all()):
            return abs(float(values[0]))
    return default


def _check_branch_gains(context: RuleContext) -> Finding | None:
    """Check that learned scales of branches, as in ReZero and LayerScale, start small."""
    closed = {add.node for add in negligible_branches(context)}  # by a matrix of zeros, as in Fixup
    learned = [
        (block, scale)
        for block in context.blocks
        if block.exit_norm is None and not block.add.is_mixed and not block.is_dual
        for scale in block.scales
        if scale.kind == "weight" and block.add.node not in closed
    ]
    if len(learned) < MIN_SCALED_BLOCKS or any(s.value != 1 for _, s in learned):
        return None
    has_norm = any(b.has_pre_norm or b.has_post_norm or b.partial_norms for b, _ in learned)
    method = "LayerScale" if learned[0][1].size > 1 else "ReZero"
    return Finding(
        "scale_without_init", "info" if has_norm else "warning",
        context.module_path(learned[0][0]),
        f"the learned scales of the branches start at 1, so that they have no effect at first; "
        f"{method} starts at {'1e-5 to 0.1' if method == 'LayerScale' else '0'}",
        {"scales": len(learned), "start": 1.0, "has norms": has_norm},
    )  # fmt: skip


def _check_skip_gains(context: RuleContext) -> Finding | None:
    """Check learned scales on the skip: they must not close it, and Admin's must be profiled."""
    learned = [
        (block, scale)
        for block in context.blocks
        if not block.is_gated_or_mixed and not block.is_dual and not block.skipped_adds
        for scale in block.add.shortcut_scales
        if scale.kind == "weight"
    ]
    values = [scale.value for _, scale in learned]
    if len(learned) < MIN_SCALED_BLOCKS or len(set(values)) > 1 or values[0] is None:
        return None
    if abs(values[0]) < MIN_SKIP_SCALE:
        return Finding(
            "scale_without_init", "warning", context.module_path(learned[0][0]),
            f"the learned scales of the skip start at {values[0]:.3g}, so that the stream is lost "
            "at first; LayerScale and ReZero scale the branch: x + alpha * f(x)",
            {"scales": len(learned), "start": values[0]},
        )  # fmt: skip
    if values[0] != 1:
        return None
    if not all(context.wiring(block) == "post_ln" for block, _ in learned):
        return None
    return Finding(
        "scale_without_init", "info", context.module_path(learned[0][0]),
        "the learned scales of the skip all start at 1, as in Post-LN without them; Admin computes "
        "them from the variances of the branches in a profiling pass",
        {"scales": len(learned), "start": values[0]},
    )  # fmt: skip


def _check_norm_free(context: RuleContext) -> Finding | None:
    """Check that a Transformer without norms starts with small weights, as in T-Fixup."""
    blocks = [b for b in context.blocks if b.kind in ("self-attention", "feed-forward")]
    has_norm = any(norm.kind != "l2" for norm in context.iter_norms())
    if has_norm or len(blocks) < MIN_NORM_FREE_BLOCKS or len({b.kind for b in blocks}) < 2:
        return None
    if any(b.scales or b.add.shortcut_scales or b.is_gated_or_mixed for b in blocks):
        return None
    gains = [gain for block in blocks for _, gain in _iter_gains(context, block)]
    if not gains or median(gains) < PLAIN_XAVIER_GAIN:
        return None
    return Finding(
        "scale_without_init", "info", context.module_path(blocks[0]),
        f"the blocks have neither norms nor scales, and the value, output and feed-forward weights "
        f"start with {median(gains):.2f} times the deviation of Xavier; T-Fixup multiplies them by "
        "0.67 * layers ** -0.25",
        {"blocks": len(blocks), "gain": median(gains)},
    )  # fmt: skip


def _check_norm_gains(context: RuleContext) -> Finding | None:
    """Check that no norm on the stream starts with a gain of 0: it would return a constant.

    A gain of 0 at the end of a branch closes the branch at first, and that of a final norm makes
    the first outputs 0; both are healthy, since these gains learn first. If no matrix gets a
    gradient, `constant_weights` says so.
    """
    closing = {block.exit_norm for block in context.analysis.add_analyses}
    on_stream = {i for b in context.blocks for i in (*b.entry_norms, b.post_norm)}
    for norm in context.iter_norms():
        if norm.node in closing:
            continue
        names = list(norm.weights) or direct_gains(context, norm)
        values = [context.weights[name].detach() for name in names if name in context.weights]
        if not values or bool(values[0].any()) or values[0].numel() < 2:
            continue
        has_bias = len(values) == 2 and bool(values[1].all())
        if has_bias or norm.node in on_stream:
            if any(constant_weights(context)):
                return None
            return Finding(
                "scale_without_init", "warning", norm.path,
                "the gain of this norm starts at 0, so that its output is constant; start the gain "
                "at 1 and the bias at 0, or multiply by 1 + gain",
                {"gain": 0.0, "bias": float(values[1].float().mean()) if has_bias else 0.0},
            )  # fmt: skip
    return None


def _check_random_scales(context: RuleContext) -> Finding | None:
    """Check that learned scales of branches do not start as random numbers of both signs."""
    random = []
    for block in context.blocks:
        for scale in block.scales:
            names = context.weight_names(scale.node, include_slices=False)
            values = [context.weights[n].detach().float() for n in names if n in context.weights]
            vectors = [v.flatten() for v in values if v.numel() == scale.size >= MIN_VECTOR]
            is_random = any(0.2 < float((v < 0).float().mean()) < 0.8 for v in vectors)
            random += [(block, scale)] if scale.kind == "weight" and is_random else []
    if len(random) < MIN_SCALED_BLOCKS or context.has_trained_gains:
        return None
    return Finding(
        "scale_without_init", "warning", context.module_path(random[0][0]),
        f"the learned scales of {len(random)} branches start as random numbers of both signs; "
        "LayerScale starts all of them at one small number, such as 1e-4",
        {"scales": len(random)},
    )  # fmt: skip
