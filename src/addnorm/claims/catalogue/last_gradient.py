"""Claim: the last feed-forward gradient is constant in Post-LN, 1 / sqrt(depth) in Pre-LN."""

from collections.abc import Iterator, Sequence

import torch
from torch.nn import functional as F

from addnorm.claims.checks import Check
from addnorm.claims.claim import ChartSpec, register
from addnorm.claims.init_claims import (
    BudgetSettings,
    InitClaim,
    estimate_per_seed,
    make_budget_table,
    make_row,
    make_slope_statistic,
    reseed,
    select_rows,
)
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.models import build

POST_LN_SLOPE, PRE_LN_SLOPE = 0.0, -0.5
SLOPE_TOLERANCE = abs(POST_LN_SLOPE - PRE_LN_SLOPE) / 2
"""Half of the distance between the predictions: a slope within it is nearer to its own."""


@register(
    Card(
        name="last_gradient",
        title="Gradient of the last layer",
        formula="|d loss / d W_2 of the last layer| ~ 1 in Post-LN, ~ 1 / sqrt(depth) in Pre-LN",
        paper=(
            "Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, "
            "arXiv 2002.04745"
        ),
        summary=(
            "At initialization the gradient of the last feed-forward matrix does not depend on the "
            "depth in Post-LN, and falls like 1 / sqrt(depth) in Pre-LN."
        ),
    )
)
class LastGradient(InitClaim):
    """Slope of ln gradient norm over ln depth.

    slope = d ln |d loss / d W_2| / d ln depth

    W_2: (dim, ffn_dim), the second matrix of the last feed-forward sub-layer
    """

    # NOTE[DIFF]: the theorem is about a single head without queries and keys, and matrices as wide
    # as the stream; here the usual layers at their usual start, as the paper's own figure has them.
    paper_location = "section 3.3, theorem 1 and figure 3"
    about = ("post_ln", "pre_ln")
    finding = (
        "the last feed-forward gradient grows as depth to the power {slope of post_ln, ln "
        "gradient over ln depth} in Post-LN and {slope of pre_ln, ln gradient over ln depth} in"
        " Pre-LN"
    )
    measured_on = "untrained language models of 8 to 64 layers of width 32"
    reach = "at initialization only; the power of Post-LN is close to 0, not exactly 0"
    experiment = (
        "Untrained language models that differ only in depth read random tokens with random "
        "targets. After one backward pass the norm of the gradient of the last layer's second "
        "feed-forward matrix is measured, and a line is fitted to its logarithm over the "
        "logarithm of depth."
    )
    rule = (
        f"Post-LN: the slope lies within {SLOPE_TOLERANCE:g} of {POST_LN_SLOPE:g}. Pre-LN: within "
        f"{SLOPE_TOLERANCE:g} of {PRE_LN_SLOPE:g}. So each is nearer to its own prediction than to "
        "the other's. Until the third round: within 0.1, a number without a source."
    )
    pilot = (
        "three runs of 8, 32 and 96 other seeds by the narrower rule, all undecided: in the last, "
        "Post-LN had a slope of 0.11 ± 0.03. No run of this round had been looked at when the rule "
        "was written."
    )
    corrected = True
    has_new_rows = True
    chart = ChartSpec(
        name="gradient", x="depth", y="norm of the last W_2's gradient", log_x=True, log_y=True
    )
    budgets = make_budget_table(
        seeds=(2, 24, 96),
        first_seed=(0, 300, 0),
        depths=([2, 4], [8, 16, 32, 64], [8, 16, 32, 64, 128]),
        dim=(16, 32, 256),
        vocab=(16, 64, 64),
        length=(8, 16, 64),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        for wiring in ("post_ln", "pre_ln"):
            for depth in settings["depths"]:
                reseed(settings["seed"])
                ids = torch.randint(settings["vocab"], (8, settings["length"]))
                targets = torch.randint(settings["vocab"], ids.shape)
                heads = settings["dim"] // 16
                model = build(
                    kind="lm", vocab=settings["vocab"], dim=settings["dim"], depth=depth,
                    heads=heads, wiring=wiring, embed_scale="sqrt_dim",
                )  # fmt: skip
                loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
                loss.backward()  # type: ignore[no-untyped-call]
                weights = [w for role, w in model.stacks[0].weights() if role == "ffn_out"]
                assert weights[-1].grad is not None
                yield make_row("gradient", weights[-1].grad.norm(), arm=wiring, depth=depth)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        fit = make_slope_statistic("depth", log_x=True, log_y=True)
        return [
            Check(
                f"slope of {arm}, ln gradient over ln depth",
                estimate_per_seed(select_rows(rows, "gradient", arm=arm), fit),
                expected - SLOPE_TOLERANCE,
                expected + SLOPE_TOLERANCE,
            )
            for arm, expected in (("post_ln", POST_LN_SLOPE), ("pre_ln", PRE_LN_SLOPE))
        ]
