"""Claim: without residual connections all tokens collapse to one direction."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

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
    max_value,
    select_rows,
)
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row

MIN_COLLAPSED_COSINE = 0.99
NO_SKIPS, WITH_SKIPS = "no skip", "with skips"
SUBLAYERS_PER_LAYER = {"attention alone": 1, "both kinds": 2}
"""Number of sub-layers used from each layer: attention, or attention and feed-forward."""


NUM_SLOPE_LAYERS, LOG_SLOPE = 4, make_slope_statistic("layer", log_y=True)
"""Layers of the slope fit; in deeper layers only rounding errors remain."""
MIN_COSINE_DISTANCE = 1e-12
"""Lower limit of 1 - cosine; smaller values are rounding errors."""


@register(
    Card(
        name="rank_collapse",
        title="Rank collapse without skips",
        formula="x <- N(f(x)): cos(x_s, x_t) -> 1 for all tokens s, t",
        paper=(
            "Dong, Cordonnier and Loukas, Attention is Not All You Need: Pure Attention Loses "
            "Rank Doubly Exponentially with Depth, 2021, arXiv 2103.03404"
        ),
        summary=(
            "Without residual connections the tokens of a sequence collapse to one direction "
            "within a few layers; with them they collapse more slowly or not at all."
        ),
    )
)
class RankCollapse(InitClaim):
    """Mean cosine between the tokens of a sequence, by layer.

    cosine = mean over pairs s != t of x_s . x_t / (|x_s| |x_t|)

    x: (B, L, dim), after each layer; a norm follows every sub-layer in all arms
    """

    # NOTE[DIFF]: the paper bounds the distance to a matrix of rank 1; the mean cosine measures the
    # same effect. Its model has no norms; here a norm follows every sub-layer.
    paper_location = "theorem 2.2 and section 4.2"
    about = ("post_ln",)
    finding = (
        "after 12 layers the mean cosine of two tokens is {both kinds, no skip: mean cosine "
        "behind layer 12} without skips and {both kinds, with skips: mean cosine behind layer "
        "12} with them"
    )
    measured_on = "untrained layers of width 128, a norm after each sub-layer"
    reach = "at initialization only; with skips, too, tokens get close"
    experiment = (
        "Gaussian tokens pass through the same untrained layers four times: through the "
        "attention sub-layers alone and through attention and feed-forward, each without and "
        "with skips. A LayerNorm follows every sub-layer each time."
    )
    rule = (
        "Without skips, through the attentions alone and through both kinds: the mean cosine "
        f"behind the last layer is above {MIN_COLLAPSED_COSINE:g}; and 1 - cosine falls faster "
        "than with skips: the slope of its logarithm over the first layers, seed by seed, is "
        "lower. The cosine with skips is told and not judged."
    )
    pilot = (
        "a first run by another rule, which a reviewer found to be wrong: it hung on "
        "the depth. A floor of 1e-12 below 1 - cosine came after a run that had given "
        "slopes that are no numbers. Whoever wrote the rule of today had seen those "
        "rows."
    )
    corrected = True
    chart = ChartSpec(name="cosine", x="layer", y="mean cosine between tokens")
    budgets = make_budget_table(
        seeds=(2, 8, 16),
        depth=(2, 12, 24),
        dim=(16, 128, 512),
        length=(8, 32, 64),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        stack = make_encoder("post_ln", settings["depth"], settings["dim"])
        start = torch.randn(4, settings["length"], settings["dim"])
        for kind, count in SUBLAYERS_PER_LAYER.items():
            for skip in (NO_SKIPS, WITH_SKIPS):
                x = start.double()
                for layer in range(settings["depth"]):
                    for sublayer in stack.double().sublayers[2 * layer : 2 * layer + count]:
                        with torch.no_grad():
                            branch = sublayer(x)
                        x = F.layer_norm(branch + x * (skip == WITH_SKIPS), (settings["dim"],))
                    arm = f"{kind}, {skip}"
                    yield make_row("cosine", _cosine(x), arm=arm, layer=layer + 1)
                    apart = (1 - _cosine(x)).clamp(min=MIN_COSINE_DISTANCE)
                    yield make_row("apart", apart, arm=arm, layer=layer + 1)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        last = max((each["layer"] for each in rows), default=0)
        checks = []
        for kind in SUBLAYERS_PER_LAYER:
            bare, kept = (f"{kind}, {skip}" for skip in (NO_SKIPS, WITH_SKIPS))
            last_cosine, skip_cosine = (
                estimate_per_seed(select_rows(rows, "cosine", arm=arm, layer=last), max_value)
                for arm in (bare, kept)
            )
            slopes = [
                compute_per_seed(
                    [
                        e
                        for e in select_rows(rows, "apart", arm=arm)
                        if e["layer"] <= NUM_SLOPE_LAYERS
                    ],
                    LOG_SLOPE,
                )
                for arm in (bare, kept)
            ]
            checks += [
                Check(
                    f"{bare}: mean cosine behind layer {last}",
                    last_cosine,
                    low=MIN_COLLAPSED_COSINE,
                ),
                Check(
                    f"{kind}: slope of ln(1 - cosine), no skip minus skips",
                    paired_difference(*slopes),
                    high=0,
                ),
                Check(f"{kept}: mean cosine behind layer {last}", skip_cosine),
            ]
        return checks


def _cosine(x: Tensor) -> Tensor:
    unit = F.normalize(x, dim=-1)
    length = x.shape[1]
    total = (unit @ unit.mT).sum((1, 2)) - length  # without the diagonal
    return (total / (length * (length - 1))).mean()
