"""Rule `wrong_attention_scale`: scores divided by the root of another number than the head's."""

import math
from collections.abc import Iterator

from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.unscaled_attention import Scores, iter_scores


@rule("wrong_attention_scale")
def wrong_attention_scale(context: RuleContext) -> Iterator[Finding]:
    """Report scores that are scaled by another factor than 1 / sqrt(features of a head).

    Known are the roots of other sizes (the width of the model, all keys, the number of heads or of
    tokens), the right factor applied twice, the factor of heads that are not split, and 1 / d. That
    is right for muP, so it is a remark, and silent if the model has other constant factors or
    matrices of zeros.
    """
    scores = [s for block in context.blocks for s in iter_scores(context, block)]
    described = [(s, text) for s in scores if (text := _describe(context, s))]
    if not described or len(described) < len(scores):
        return
    first, text = described[0]
    dim, total = first.head_dim, first.total or 1.0
    change = total * math.sqrt(dim)
    how = f"larger by {change:.3g}" if change > 1 else f"smaller by {1 / change:.3g}"
    severity: Severity = "info" if f"divided by {dim} instead" in text else "warning"
    yield Finding(
        "wrong_attention_scale", severity, first.attention.path,
        f"the scores of heads with {dim} features are {text}, so logits start {how}; divide them "
        "once, by the root of the number of features of one head",
        {
            "head dim": dim,
            "model dim": _model_width(context, first),
            "factor": first.total,
            "attentions": len(described),
        },
    )  # fmt: skip


def _describe(context: RuleContext, scores: Scores) -> str:
    """Return what is wrong with the factor of the scores; empty if nothing is known to be."""
    dim, factor, width = scores.head_dim, scores.total, _model_width(context, scores)
    if factor is None or factor <= 0:
        return ""
    applied = [part for part in scores.parts if _is_close(part, dim**-0.5)]
    if len(applied) > 1 and _is_close(factor, 1 / dim):
        return f"divided by sqrt({dim}) twice, before and after their product"
    if _is_close(factor, dim**-0.5) or _is_close(factor, 1):
        return ""
    if _is_close(factor, 1 / dim):
        if _has_other_factors(context):
            return ""
        name = f"sqrt({width}), the width of the model," if width == dim**2 else f"{dim}"
        return f"divided by {name} instead of sqrt({dim})"
    for size, name in _iter_sizes(context, scores):
        if size > 1 and size != dim and _is_close(factor, size**-0.5):
            return f"divided by sqrt({size}), {name}, instead of sqrt({dim})"
    part = round(factor**-2)
    if scores.heads < 2 and 1 < part < dim and dim % part == 0 and _is_close(factor, part**-0.5):
        return f"divided by sqrt({part}), as if {dim // part} heads were split, which they are not"
    return ""


def _iter_sizes(context: RuleContext, scores: Scores) -> Iterator[tuple[int, str]]:
    """Yield sizes whose root is divided by instead of that of a head's features."""
    yield _model_width(context, scores), "the width of the model"
    yield scores.heads, "the number of heads"
    yield scores.heads * scores.head_dim, "the width of all heads"
    yield from ((size, "the width of all keys") for size in scores.key_widths)
    yield scores.attention.query_count, "the number of tokens"


def _has_other_factors(context: RuleContext) -> bool:
    """Return whether the model looks like muP: constant factors elsewhere, or matrices of zeros."""
    inside = {i for block in context.blocks for i in block.add.path if block.kind != "feed-forward"}
    for node in context.graph:
        numbers = [o.value for o in node.operands if o.kind == "number" and o.value is not None]
        is_factor = node.active and node.op in ("mul", "div") and len(node.inputs) == 1
        if is_factor and node.index not in inside and any(n not in (0.0, 1.0) for n in numbers):
            return True
    matrices = [w for w in context.weights.values() if w.dim() > 1]
    return context.has_trained_gains or any(not bool(w.detach().any()) for w in matrices)


def _is_close(factor: float, value: float) -> bool:
    return math.isclose(factor, value, rel_tol=1e-3)


def _model_width(context: RuleContext, scores: Scores) -> int:
    return context.graph[scores.block.add.fork].shape[-1]
