"""Rules about masks: inverted, blocking, of the wrong diagonal or attention, or of one mode."""

from collections.abc import Iterator, Sequence

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.probing.model_runs import trace_in_train_mode
from addnorm.doctor.trace.statistics import Attention

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


@rule("hidden_diagonal")
def hidden_diagonal(context: RuleContext) -> Iterator[Finding]:
    """Report causal masks that hide each token from itself, so that the first one sees nothing."""
    strict = [a for a in context.square_attentions() if a.visible == "before"]
    if strict:
        yield Finding(
            "hidden_diagonal", "error", strict[0].path,
            f"the causal masks of {len(strict)} attentions hide each token from itself, too, and "
            "everything from the first token, whose weights are equal or NaN; begin above the "
            "diagonal, as torch.ones(L, L).triu(1)",
            {"attentions": len(strict)},
        )  # fmt: skip


@rule("causal_cross_attention")
def causal_cross_attention(context: RuleContext) -> Iterator[Finding]:
    """Report cross-attentions with the causal mask of the target, which hides most of the source.

    Silent if the source is read causally, too, as in streaming models.
    """
    crossing = [block for block in context.blocks if block.kind == "cross-attention"]
    others = {block.stream for block in crossing}
    sources = [b for b in context.blocks if b.stream not in others and b.kind == "self-attention"]
    is_open = sources and not any(a.is_causal for a in context.square_attentions(sources))
    triangular = [
        a
        for block in crossing
        if _reads_stream(context, block, sources)
        for a in context.trace.recording.stats.attentions
        if a.node in block.add.path and a.is_triangular
    ]
    if triangular and is_open:
        yield Finding(
            "causal_cross_attention", "error", triangular[0].path,
            f"{len(triangular)} cross-attentions have a causal mask, so that the first tokens of "
            "the target see the first tokens of the source only; mask the padding of the source",
            {"attentions": len(triangular)},
        )  # fmt: skip


def _reads_stream(context: RuleContext, block: AddAnalysis, sources: Sequence[AddAnalysis]) -> bool:
    """Return whether a branch reads the result of other blocks directly, not through its stream.

    The kind of a block does not suffice: the only self-attention of a decoder, with tokens on the
    first axis, can look like a cross-attention.
    """
    graph, inside = context.graph, {*block.add.path, block.add.fork}
    outside = {i for node in block.add.path for i in graph[node].inputs} - inside
    read = graph.data_ancestors(*outside)
    return any(source.add.node in read for source in sources)


@rule("swallowed_scores")
def swallowed_scores(context: RuleContext) -> Iterator[Finding]:
    """Report masks that add a huge number to visible scores, so that rounding removes the scores.

    The weights of the visible tokens are then exactly equal.
    """
    attentions = context.trace.recording.stats.attentions
    swallowed = [
        a
        for a in attentions
        if a.min_logit > FILL_SIZE and a.logit_deviation < ROUNDING * a.max_logit
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


@rule("mode_dependent_mask")
def mode_dependent_mask(context: RuleContext) -> Iterator[Finding]:
    """Report attentions that are causal in train mode only, or in eval mode only."""
    trace_in_train_mode(context)
    training: Sequence[Attention] = context.cache.get("train attentions", ())
    by_mode = [
        {a.path: a.is_causal for a in attentions if a.is_square}
        for attentions in (context.trace.recording.stats.attentions, training)
    ]
    both = by_mode[0].keys() & by_mode[1].keys()
    changed = sorted(path for path in both if by_mode[0][path] != by_mode[1][path])
    if changed and len(by_mode[0]) == len(by_mode[1]) and not context.trace.training:
        mode = "eval" if by_mode[0][changed[0]] else "train"
        yield Finding(
            "mode_dependent_mask", "error", changed[0],
            f"{len(changed)} attentions hide later tokens in {mode} mode only, so the model is "
            "evaluated as another one than it is trained; apply the causal mask in both modes",
            {"attentions": len(changed), "causal in": mode},
        )  # fmt: skip
