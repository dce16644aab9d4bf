"""Rules `inverted_mask` and `blocking_mask`: attention masks that hide the wrong tokens."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


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


def reads_both_directions(context: RuleContext) -> bool:
    """Return whether as many attentions read from left to right as from right to left."""
    causal = sum(a.is_causal for a in context.square_attentions())
    return causal == sum(a.visible == "later" for a in context.square_attentions()) > 0
