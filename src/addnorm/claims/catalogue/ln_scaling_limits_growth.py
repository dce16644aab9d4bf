"""Claim: LayerNorm Scaling limits the growth of Pre-LN's variance."""

import math
from collections.abc import Iterator, Sequence

import torch

from addnorm.claims.checks import Check, estimate_over_seeds
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
from addnorm.core.cards import Card
from addnorm.core.rows import Row

ARMS = ("pre_ln", "ln_scaling")


@register(
    Card(
        name="ln_scaling_limits_growth",
        title="LayerNorm Scaling limits the stream's variance",
        formula="Var(x_l) of pre_ln grows faster with l than Var(x_l) of ln_scaling",
        paper="Sun et al., The Curse of Depth in Large Language Models, 2025, arXiv 2502.05795",
        summary=(
            "Norms scaled by 1 / sqrt(layer) limit the growth of the stream's variance with depth."
        ),
    )
)
class LNScalingLimitsGrowth(InitClaim):
    """Mean square of the stream after each layer, and of the branches relative to it.

    square = mean(x_l ** 2),  share = mean((x_l - x_{l-1}) ** 2) / mean(x_l ** 2)

    x_l: (B, L, dim), the stream after layer l, relative to an input of mean square 1
    """

    paper_location = "section 4"
    about = ("ln_scaling", "pre_ln")
    finding = (
        "behind the last layer the stream of Pre-LN has {ratio of the last mean squares} times the "
        "mean square of LayerNorm Scaling's; what the last layer adds is {last layer's share, "
        "pre_ln} of the stream in Pre-LN and {last layer's share, ln_scaling} in LayerNorm Scaling"
    )
    measured_on = "untrained encoders of 32 layers of width 128"
    reach = (
        "at initialization only; that deep layers become more useful in training is not measured"
    )
    experiment = (
        "Two encoders with the same weights, Pre-LN and LayerNorm Scaling, read Gaussian vectors; "
        "the mean square of the stream is measured after every layer."
    )
    rule = (
        "The power of the layer with which the growth of the mean square increases is larger in "
        "Pre-LN, and behind the last layer its mean square is more than twice as large. The share "
        "that the last layer adds is told and not judged."
    )
    chart = ChartSpec(name="square", x="layer", y="mean square of the stream")
    budgets = make_budget_table(
        seeds=(2, 12, 24), depth=(4, 32, 64), dim=(16, 128, 512), length=(8, 32, 128)
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        for arm in ARMS:
            reseed(settings["seed"])
            x = torch.randn(4, settings["length"], settings["dim"])
            # The same weights: by default Pre-LN's output matrices shrink with depth.
            stack = make_encoder(arm, settings["depth"], settings["dim"])
            stack.init_weights(scheme="xavier_uniform")
            with torch.no_grad(), stack.taps.record() as tape:
                stack(x)
            before, start = x, x.square().mean()
            for layer in range(1, settings["depth"] + 1):
                after = tape["stream"][2 * layer - 1]
                square = after.square().mean()
                yield make_row("square", square / start, arm=arm, layer=layer)
                share = (after - before).square().mean() / square
                yield make_row("share", share, arm=arm, layer=layer)
                before = after

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        powers, last = {}, {}
        for arm in ARMS:
            squares = select_rows(rows, "square", arm=arm)
            growth = [{**each, "value": each["value"] - 1} for each in squares]
            slope = make_slope_statistic("layer", log_x=True, log_y=True)
            powers[arm] = compute_per_seed(growth, slope)
            last[arm] = compute_per_seed(squares, _last_value)
        pre, scaled = ARMS
        lower = {seed: powers[pre][seed] - power for seed, power in powers[scaled].items()}
        ratio = {
            seed: last[pre][seed] / square if square else math.nan
            for seed, square in last[scaled].items()
        }
        shares = {arm: select_rows(rows, "share", arm=arm) for arm in ARMS}
        return [
            Check("how much lower the power is", estimate_over_seeds(lower), low=0),
            Check("ratio of the last mean squares", estimate_over_seeds(ratio), low=2),
            *(
                Check(f"last layer's share, {arm}", estimate_per_seed(shares[arm], _last_value))
                for arm in ARMS
            ),
        ]


def _last_value(rows: list[Row]) -> float:
    """Return the value behind the last layer."""
    return float(max(rows, key=lambda row: row["layer"])["value"])
