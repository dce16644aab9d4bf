"""Rule `wrong_attention_scale`: scores divided by the root of another number than the head's."""

import math
from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.unscaled_attention import Scores, iter_scores


@rule("wrong_attention_scale")
def wrong_attention_scale(context: RuleContext) -> Iterator[Finding]:
    """Report scores that are scaled by another factor than 1 / sqrt(features of a head).

    Three factors are known: the root of the model's width, the root of the number of heads, and
    the right one applied twice, to queries or keys and to the scores. Silent if the factor has
    another reading, such as 1 / d with d features per head, unless two operations apply it.
    """
    scores = [s for block in context.blocks for s in iter_scores(context, block)]
    described = [(s, text) for s in scores if (text := _describe(context, s))]
    if not described or len(described) < len(scores):
        return
    first, text = described[0]
    dim, total = first.head_dim, first.total or 1.0
    change = total * math.sqrt(dim)
    how = f"larger by {change:.3g}" if change > 1 else f"smaller by {1 / change:.3g}"
    yield Finding(
        "wrong_attention_scale", "warning", first.attention.path,
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
    if factor is None:
        return ""
    applied = [part for part in scores.parts if _is_close(part, dim**-0.5)]
    if len(applied) > 1 and _is_close(factor, 1 / dim):
        return f"divided by sqrt({dim}) twice, before and after their product"
    if any(_is_close(factor, value) for value in (1, 1 / dim, dim**-0.5)):
        return ""
    if width > dim and _is_close(factor, width**-0.5):
        return f"divided by sqrt({width}), the width of the model, instead of sqrt({dim})"
    if scores.heads > 1 and _is_close(factor, scores.heads**-0.5):
        return f"divided by sqrt({scores.heads}), the number of heads, instead of sqrt({dim})"
    return ""


def _is_close(factor: float, value: float) -> bool:
    return math.isclose(factor, value, rel_tol=1e-3)


def _model_width(context: RuleContext, scores: Scores) -> int:
    return context.graph[scores.block.add.fork].shape[-1]
