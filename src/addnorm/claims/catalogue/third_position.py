"""Claim: x + N(f(x)) is neither Post-LN nor Pre-LN; its stream grows by a different law."""

from collections.abc import Iterator, Sequence

import torch

from addnorm.claims.checks import Check
from addnorm.claims.claim import ChartSpec, register
from addnorm.claims.init_claims import (
    BudgetSettings,
    InitClaim,
    compute_per_seed,
    estimate_per_seed,
    make_budget_table,
    make_encoder,
    make_row,
    make_slope_statistic,
    reseed,
    select_rows,
)
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row

BRANCH_SCALE = 3.0
"""Factor of the last matrix of every branch in the second measurement."""
UNIT_GROWTH_RANGE = (0.8, 1.2)
ZERO_GROWTH_RANGE = (-0.05, 0.05)
MIN_EXTRA_GROWTH = 2.0
ARMS = ("post_ln", "pre_ln", "res_post")


@register(
    Card(
        name="third_position",
        title="A norm after the branch",
        formula="x + N(f(x)): Var x_i = Var x_0 + i, whatever the size of f",
        paper=(
            "Tay et al., Efficient Transformers: A Survey, 2020, arXiv 2009.06732, where it "
            "stands for Post-LN; Liu et al., Swin Transformer V2, 2021, arXiv 2111.09883"
        ),
        summary=(
            "A norm after the branch, x + N(f(x)), is neither Post-LN, whose stream has constant "
            "size, nor Pre-LN, whose growth depends on the weights."
        ),
    )
)
class ThirdPosition(InitClaim):
    """Growth of the stream's variance per site.

    growth = slope of Var x_i over i

    x_i: (B, L, dim), the stream after site i; variance over features, mean over tokens
    """

    attributed_to = "ours, on a form that Tay et al., 2020, call Post-LN"
    paper_location = "section 2.1 of Tay et al.; section 3.2 of Liu et al."
    about = ("res_post", "post_ln", "pre_ln")
    finding = (
        "the stream's variance grows per site by {res_post: growth a site} with the norm after "
        "the branch, whatever the weights, and by {post_ln: growth a site} in Post-LN"
    )
    measured_on = "untrained encoders of 12 layers of width 128"
    reach = "at initialization only"
    experiment = (
        "Untrained encoders read Gaussian vectors, once unchanged and once with the last matrix "
        f"of every branch times {BRANCH_SCALE:g}. A line is fitted to the variance of the stream "
        "over the site number."
    )
    rule = (
        f"Res-post grows by {UNIT_GROWTH_RANGE[0]:g} to {UNIT_GROWTH_RANGE[1]:g} a site, and by "
        f"the same (within {ZERO_GROWTH_RANGE[1]:g}) with larger matrices; Post-LN by "
        f"{ZERO_GROWTH_RANGE[0]:g} to {ZERO_GROWTH_RANGE[1]:g}; and Pre-LN by at least "
        f"{MIN_EXTRA_GROWTH:g} more a site with larger matrices than with the usual ones."
    )
    chart = ChartSpec(
        name="variance",
        x="site",
        y="variance of the stream",
        group_by=("arm", "matrices"),
        log_y=True,
    )
    budgets = make_budget_table(
        seeds=(2, 8, 16),
        depth=(3, 12, 48),
        dim=(16, 128, 512),
        length=(8, 32, 64),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        for wiring in ARMS:
            reseed(settings["seed"])
            x = torch.randn(4, settings["length"], settings["dim"])
            stack = make_encoder(wiring, settings["depth"], settings["dim"])
            for matrices in ("usual", f"times {BRANCH_SCALE:g}"):
                with torch.no_grad(), stack.taps.record() as tape:
                    stack(x)
                for site, stream in enumerate(tape["stream"], start=1):
                    variance = stream.var(-1, correction=0).mean()
                    yield make_row("variance", variance, arm=wiring, matrices=matrices, site=site)
                with torch.no_grad():
                    for role, weight in stack.weights():
                        weight.mul_(BRANCH_SCALE if role in ("out", "ffn_out") else 1.0)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        fit = make_slope_statistic("site")
        large = f"times {BRANCH_SCALE:g}"

        def growth(arm: str, matrices: str) -> dict[int, float]:
            return compute_per_seed(select_rows(rows, "variance", arm=arm, matrices=matrices), fit)

        usual = {arm: select_rows(rows, "variance", arm=arm, matrices="usual") for arm in ARMS}
        return [
            Check(
                "res_post: growth a site",
                estimate_per_seed(usual["res_post"], fit),
                *UNIT_GROWTH_RANGE,
            ),
            Check(
                f"res_post: growth with matrices {large} minus that with usual ones",
                paired_difference(growth("res_post", large), growth("res_post", "usual")),
                *ZERO_GROWTH_RANGE,
            ),
            Check(
                "post_ln: growth a site",
                estimate_per_seed(usual["post_ln"], fit),
                *ZERO_GROWTH_RANGE,
            ),
            Check(
                f"pre_ln: growth with matrices {large} minus that with usual ones",
                paired_difference(growth("pre_ln", large), growth("pre_ln", "usual")),
                low=MIN_EXTRA_GROWTH,
            ),
        ]
