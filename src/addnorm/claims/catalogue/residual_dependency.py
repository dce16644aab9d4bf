"""Residual dependency: constant along a Post-LN stack, about 1 / (i + 1) along a Pre-LN one."""

from collections.abc import Iterator, Sequence

import torch

from addnorm.claims.at_init import (
    AtStart,
    Sizes,
    anew,
    each_seed,
    picked,
    row,
    sizes,
    slope,
    stack_of,
)
from addnorm.claims.checks import Check
from addnorm.claims.claim import Drawing, register
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.measure import forward_rows

CONSTANT, HARMONIC = (-0.1, 0.1), (-1.25, -0.75)


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
class ResidualDependency(AtStart):
    """The slope of the dependency over the number of the site, both logarithmic.

    slope = d ln dep_i / d ln (i + 1)

    dep_i: Var[f_i] / Var[x_i + f_i], over all features and tokens
    i: number of the site, from 1; only feed-forwards are counted, since the two kinds of sub-layer
        have branches of different size
    """

    place = "section 4.1, corollary 1"
    experiment = (
        "Encoders at their start read Gaussian vectors; the residual dependency is measured at "
        "every feed-forward, and a line is laid through its logarithm over that of the site's "
        "number plus one."
    )
    rule = (
        f"Post-LN: the slope is {CONSTANT[0]:g} to {CONSTANT[1]:g}. Pre-LN: it is "
        f"{HARMONIC[0]:g} to {HARMONIC[1]:g}, where 1 / (i + 1) would have -1."
    )
    drawing = Drawing(
        name="dependency", x="number", y="Var[f] / Var[x + f]", log_x=True, log_y=True
    )
    budgets = sizes(
        seeds=(2, 8, 16),
        depth=(3, 24, 48),
        dim=(16, 128, 512),
        length=(8, 32, 64),
    )

    def measure(self, at: Sizes) -> Iterator[Row]:
        """A forward of each wiring."""
        for wiring in ("post_ln", "pre_ln"):
            anew(at["seed"])
            x = torch.randn(4, at["length"], at["dim"])
            stack = stack_of(wiring, at["depth"], at["dim"])
            for each in picked(forward_rows(stack, x), "dependency", kind="ffn"):
                yield row("dependency", each["value"], arm=wiring, number=each["site"] + 1)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """Both slopes."""
        of = slope("number_and_one", log_x=True, log_y=True)
        moved = [{**each, "number_and_one": each.get("number", 0) + 1} for each in rows]
        return [
            Check(
                f"slope of {arm}, ln dependency over ln (i + 1)",
                each_seed(picked(moved, "dependency", arm=arm), of),
                *wanted,
            )
            for arm, wanted in (("post_ln", CONSTANT), ("pre_ln", HARMONIC))
        ]
