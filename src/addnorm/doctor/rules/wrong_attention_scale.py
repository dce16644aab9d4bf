"""Rule `wrong_attention_scale`: scores divided by the root of the width of all heads."""

import math
from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.unscaled_attention import Scores, iter_scores


@rule("wrong_attention_scale")
def wrong_attention_scale(context: RuleContext) -> Iterator[Finding]:
    """Report scores that are divided by sqrt(model width) although heads are narrower.

    Silent if the factor has another reading, such as 1 / d with d features per head.
    """
    scores = [s for block in context.blocks for s in iter_scores(context, block)]
    wrong = [s for s in scores if (width := _model_width(context, s)) and _is_root_of(s, width)]
    if not wrong or len(wrong) < len(scores):
        return
    dim, width = wrong[0].head_dim, _model_width(context, wrong[0])
    yield Finding(
        "wrong_attention_scale", "warning", wrong[0].attention.path,
        f"the scores of heads with {dim} features are divided by sqrt({width}), the width of the "
        f"model, instead of sqrt({dim}), so logits start smaller by {math.sqrt(width / dim):.3g}; "
        "divide by the root of the number of features of one head",
        {"head dim": dim, "model dim": width, "factor": wrong[0].total, "attentions": len(wrong)},
    )  # fmt: skip


def _model_width(context: RuleContext, scores: Scores) -> int:
    return context.graph[scores.block.add.fork].shape[-1]


def _is_root_of(scores: Scores, width: int) -> bool:
    """Return whether the factor is 1 / sqrt(width) and nothing else that is known."""
    factor, dim = scores.total, scores.head_dim
    if factor is None or width <= dim:
        return False
    is_other = any(math.isclose(factor, value, rel_tol=1e-3) for value in (1, 1 / dim, dim**-0.5))
    return math.isclose(factor, width**-0.5, rel_tol=1e-3) and not is_other
