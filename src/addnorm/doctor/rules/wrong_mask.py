"""Rules `inverted_mask` and `blocking_mask`: attention masks that hide the wrong tokens."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule
from addnorm.doctor.trace.statistics import Attention


@rule("inverted_mask")
def inverted_mask(context: RuleContext) -> Iterator[Finding]:
    """Report causal masks that hide earlier tokens instead of later ones.

    Models that read in both directions have as many causal as inverted masks.
    """
    inverted = [a for a in _square(context) if a.visible == "later"]
    if not inverted or reads_both_directions(context):
        return
    yield Finding(
        "inverted_mask", "error", inverted[0].path,
        "the causal mask is inverted: every token sees later tokens and no earlier one; hide the "
        "scores above the diagonal, as torch.ones(L, L).triu(1) marks them",
        {"attentions": len(inverted), "of": len(_square(context)), "seen": "later tokens"},
    )  # fmt: skip


@rule("blocking_mask")
def blocking_mask(context: RuleContext) -> Iterator[Finding]:
    """Report masks that hide all tokens, or all tokens but the one that looks.

    A layer that blocks on purpose, for instance because its window holds one token, is taken as
    healthy if other layers see more, so all of them must block only themselves.
    """
    square = _square(context)
    blind = [a for a in square if a.visible == "nothing"]
    alone = [a for a in square if a.visible == "itself"]
    if blind:
        yield Finding(
            "blocking_mask", "error", blind[0].path,
            "the mask hides every token, so the weights of this attention are equal or NaN; check "
            "whether True means visible or hidden in this mask",
            {"attentions": len(blind), "of": len(square), "seen": "nothing"},
        )  # fmt: skip
    elif alone and len(alone) == len(square):
        yield Finding(
            "blocking_mask", "error", alone[0].path,
            "the masks hide every token but the one that looks, so no token sees another; combine "
            "the masks by 'and' only if both mark the visible tokens",
            {"attentions": len(alone), "of": len(square), "seen": "itself"},
        )  # fmt: skip


def reads_both_directions(context: RuleContext) -> bool:
    """Whether as many attentions read from left to right as from right to left."""
    causal = sum(a.is_causal for a in _square(context))
    return causal == sum(a.visible == "later" for a in _square(context)) > 0


def _square(context: RuleContext) -> list[Attention]:
    """Return the attentions with as many queries as keys."""
    return [a for a in context.trace.recorder.stats.attentions if a.is_square]
