"""Residual dependency: constant along a Post-LN stack, about 1 / (i + 1) along a Pre-LN one."""

from collections.abc import Iterator, Sequence

import torch

from addnorm.claims.at_init import (
    BudgetSettings,
    InitClaim,
    budget_table,
    estimate_per_seed,
    make_encoder,
    make_row,
    reseed,
    select_rows,
    slope,
)
from addnorm.claims.checks import Check
from addnorm.claims.claim import ChartSpec, register
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
            "Every sub-layer of Post-LN leans on its own branch as heavily as any other; in "
            "Pre-LN the i-th one does so with a share of about 1 / (i + 1)."
        ),
    )
)
class ResidualDependency(InitClaim):
    """The slope of the dependency over the number of the site, both logarithmic.

    slope = d ln dep_i / d ln (i + 1)

    dep_i: Var[f_i] / Var[x_i + f_i], over all features and tokens
    i: number of the site, from 1; only feed-forwards are counted, since the two kinds of sub-layer
        have branches of different size
    """

    paper_location = "section 4.1, corollary 1"
    experiment = (
        "Encoders at their start read Gaussian vectors; the residual dependency is measured at "
        "every feed-forward, and a line is laid through its logarithm over that of the site's "
        "number plus one."
    )
    rule = (
        f"Post-LN: the slope is {CONSTANT_SLOPE_RANGE[0]:g} to {CONSTANT_SLOPE_RANGE[1]:g}. Pre-LN: it is "
        f"{HARMONIC_SLOPE_RANGE[0]:g} to {HARMONIC_SLOPE_RANGE[1]:g}, where 1 / (i + 1) would have -1."
    )
    chart = ChartSpec(
        name="dependency", x="number", y="Var[f] / Var[x + f]", log_x=True, log_y=True
    )
    budgets = budget_table(
        seeds=(2, 8, 16),
        depth=(3, 24, 48),
        dim=(16, 128, 512),
        length=(8, 32, 64),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        """A forward of each wiring."""
        for wiring in ("post_ln", "pre_ln"):
            reseed(settings["seed"])
            x = torch.randn(4, settings["length"], settings["dim"])
            stack = make_encoder(wiring, settings["depth"], settings["dim"])
            for each in select_rows(forward_rows(stack, x), "dependency", kind="ffn"):
                yield make_row("dependency", each["value"], arm=wiring, number=each["site"] + 1)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """Both slopes."""
        of = slope("number_and_one", log_x=True, log_y=True)
        moved = [{**each, "number_and_one": each.get("number", 0) + 1} for each in rows]
        return [
            Check(
                f"slope of {arm}, ln dependency over ln (i + 1)",
                estimate_per_seed(select_rows(moved, "dependency", arm=arm), of),
                *wanted,
            )
            for arm, wanted in (("post_ln", CONSTANT_SLOPE_RANGE), ("pre_ln", HARMONIC_SLOPE_RANGE))
        ]
