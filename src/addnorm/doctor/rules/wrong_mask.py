"""Rules `inverted_mask`, `blocking_mask` and `swallowed_scores`: wrong attention masks."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

FILL_SIZE = 1e7
"""Size of logits in float32 beside which scores of about 1 round to nothing."""
ROUNDING = 1e-6
"""Deviation of equal logits that rounding leaves, relative to their size."""


@rule("inverted_mask")
def inverted_mask(context: RuleContext) -> Iterator[Finding]:
    """Report causal masks that hide earlier tokens instead of later ones.

    Models that read in both directions have as many causal as inverted masks.
    """
    square = context.square_attentions()
    inverted = [a for a in square if a.visible == "later"]
    if not inverted or reads_both_directions(context):
        return
    yield Finding(
        "inverted_mask", "error", inverted[0].path,
        "the causal mask is inverted: every token sees later tokens and no earlier one; hide the "
        "scores above the diagonal, as torch.ones(L, L).triu(1) marks them",
        {"attentions": len(inverted), "of": len(square), "visible": "later tokens"},
    )  # fmt: skip


@rule("blocking_mask")
def blocking_mask(context: RuleContext) -> Iterator[Finding]:
    """Report masks that hide all tokens, or all tokens but the query itself.

    A layer that blocks on purpose, for instance because its window holds one token, is taken as
    healthy if other layers see more, so all of them must block only themselves.
    """
    square = context.square_attentions()
    blind = [a for a in square if a.visible == "nothing"]
    alone = [a for a in square if a.visible == "itself"]
    if blind:
        yield Finding(
            "blocking_mask", "error", blind[0].path,
            "the mask hides every token, so the weights of this attention are equal or NaN; check "
            "whether True means visible or hidden in this mask",
            {"attentions": len(blind), "of": len(square), "visible": "nothing"},
        )  # fmt: skip
    elif alone and len(alone) == len(square):
        yield Finding(
            "blocking_mask", "error", alone[0].path,
            "the masks hide every token but the query itself, so no token sees another; combine "
            "the masks by 'and' only if both mark the visible tokens",
            {"attentions": len(alone), "of": len(square), "visible": "itself"},
        )  # fmt: skip


@rule("swallowed_scores")
def swallowed_scores(context: RuleContext) -> Iterator[Finding]:
    """Report masks that add a huge number to visible scores, so that rounding removes the scores.

    The weights of the visible tokens are then exactly equal.
    """
    attentions = context.trace.recording.stats.attentions
    swallowed = [
        a
        for a in attentions
        if a.max_logit > FILL_SIZE and a.logit_deviation < ROUNDING * a.max_logit
    ]
    if swallowed:
        yield Finding(
            "swallowed_scores", "error", swallowed[0].path,
            f"the mask adds {swallowed[0].max_logit:.0e} to the scores of visible tokens, too, and "
            "rounding removes the scores: all visible tokens get the same weight, and queries and "
            "keys do not learn; add 0 to visible scores, and check whether the mask is additive or "
            "marks tokens by 0 and 1",
            {"attentions": len(swallowed), "of": len(attentions), "logit": swallowed[0].max_logit},
        )  # fmt: skip


def reads_both_directions(context: RuleContext) -> bool:
    """Return whether as many attentions read from left to right as from right to left."""
    causal = sum(a.is_causal for a in context.square_attentions())
    return causal == sum(a.visible == "later" for a in context.square_attentions()) > 0
