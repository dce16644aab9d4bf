"""Claim: residual dependency is constant in Post-LN and about 1 / (i + 1) in Pre-LN."""

from collections.abc import Iterator, Sequence

import torch

from addnorm.claims.checks import Check
from addnorm.claims.claim import ChartSpec, register
from addnorm.claims.init_claims import (
    BudgetSettings,
    InitClaim,
    estimate_per_seed,
    make_budget_table,
    make_encoder,
    make_row,
    make_slope_statistic,
    reseed,
    select_rows,
)
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.measure import forward_rows

CONSTANT_SLOPE_RANGE, HARMONIC_SLOPE_RANGE = (-0.1, 0.1), (-1.25, -0.75)


@register(
    Card(
        name="residual_dependency",
        title="Residual dependency",
        formula="Var[f_i] / Var[x_i + f_i] ~ constant in Post-LN, ~ 1 / (i + 1) in Pre-LN",
        paper=(
            "Liu et al., Understanding the Difficulty of Training Transformers, 2020, "
            "arXiv 2004.08249"
        ),
        summary=(
            "In Post-LN every sub-layer depends equally on its own residual branch; in Pre-LN the "
            "i-th sub-layer depends on it with a fraction of about 1 / (i + 1)."
        ),
    )
)
class ResidualDependency(InitClaim):
    """Slope of ln dependency over ln site number.

    slope = d ln dep_i / d ln (i + 1)

    dep_i: Var[f_i] / Var[x_i + f_i], over all features and tokens
    i: number of the site, from 1; only feed-forward sites are used, because attention branches have
        a different scale
    """

    paper_location = "section 4.1, corollary 1"
    about = ("post_ln", "pre_ln")
    finding = (
        "the dependency on the own branch follows the power {slope of post_ln, ln dependency "
        "over ln (i + 1)} of the sub-layer's number in Post-LN and {slope of pre_ln, ln "
        "dependency over ln (i + 1)} in Pre-LN"
    )
    measured_on = "untrained encoders of 24 layers of width 128"
    reach = "at initialization only"
    experiment = (
        "Untrained encoders read Gaussian vectors. The residual dependency is measured at every "
        "feed-forward site, and a line is fitted to its logarithm over the logarithm of the site "
        "number plus one."
    )
    rule = (
        f"Post-LN: the slope is {CONSTANT_SLOPE_RANGE[0]:g} to {CONSTANT_SLOPE_RANGE[1]:g}. "
        f"Pre-LN: it is {HARMONIC_SLOPE_RANGE[0]:g} to {HARMONIC_SLOPE_RANGE[1]:g}, where 1 / (i + "
        "1) would have -1."
    )
    chart = ChartSpec(
        name="dependency", x="number", y="Var[f] / Var[x + f]", log_x=True, log_y=True
    )
    budgets = make_budget_table(
        seeds=(2, 8, 16),
        depth=(3, 24, 48),
        dim=(16, 128, 512),
        length=(8, 32, 64),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        for wiring in ("post_ln", "pre_ln"):
            reseed(settings["seed"])
            x = torch.randn(4, settings["length"], settings["dim"])
            stack = make_encoder(wiring, settings["depth"], settings["dim"])
            for each in select_rows(forward_rows(stack, x), "dependency", kind="ffn"):
                yield make_row("dependency", each["value"], arm=wiring, number=each["site"] + 1)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        fit = make_slope_statistic("number_and_one", log_x=True, log_y=True)
        shifted = [{**each, "number_and_one": each.get("number", 0) + 1} for each in rows]
        return [
            Check(
                f"slope of {arm}, ln dependency over ln (i + 1)",
                estimate_per_seed(select_rows(shifted, "dependency", arm=arm), fit),
                *expected,
            )
            for arm, expected in (
                ("post_ln", CONSTANT_SLOPE_RANGE),
                ("pre_ln", HARMONIC_SLOPE_RANGE),
            )
        ]
