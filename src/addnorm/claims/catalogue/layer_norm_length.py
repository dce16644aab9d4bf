"""Claim: after LayerNorm y . 1 = 0 and y . y = dim, not sqrt(dim) as is often quoted."""

from collections.abc import Iterator, Sequence

import torch

from addnorm.claims.checks import Check
from addnorm.claims.claim import ChartSpec, register
from addnorm.claims.init_claims import (
    BudgetSettings,
    InitClaim,
    estimate_per_seed,
    make_budget_table,
    make_row,
    make_slope_statistic,
    max_value,
    select_rows,
)
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.norms import make_norm

MAX_ABS_MEAN = 1e-4
SLOPE_RANGE = (0.99, 1.01)
SQUARE_RATIO_RANGE = (0.999, 1.001)


@register(
    Card(
        name="layer_norm_length",
        title="Length of a normalized token",
        formula="y . 1 = 0 and y . y = dim",
        paper=(
            "Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, "
            "arXiv 2002.04745; Sukhbaatar et al., Augmenting Self-attention with Persistent "
            "Memory, 2019, arXiv 1907.01470, is quoted with sqrt(dim)"
        ),
        summary=(
            "LayerNorm makes every token orthogonal to (1, ..., 1) and of squared length "
            "y . y = dim, not sqrt(dim), which is the length |y|."
        ),
    )
)
class LayerNormLength(InitClaim):
    """Sum and squared length of tokens after an untrained LayerNorm.

    sum = |y . 1| / dim, square = y . y

    y: (dim), a token; reported are the largest sum and the mean square over all tokens
    """

    paper_location = "appendix C of Xiong et al.; section 2 of Sukhbaatar et al."
    about = ("layer",)
    finding = (
        "for every token y . y / dim is {y . y / dim at dim 1024} and y . 1 / dim at most "
        "{largest |y . 1| / dim}"
    )
    measured_on = "LayerNorm alone, widths 16 to 1,024"
    reach = "exact, up to eps"
    experiment = (
        "Random tokens, neither centred nor scaled, pass through LayerNorm at several widths. A "
        "line is fitted to ln(y . y) over ln(dim): its slope is 1 if y . y = dim and 0.5 if it is "
        "sqrt(dim)."
    )
    rule = (
        f"|y . 1| / dim is {MAX_ABS_MEAN:g} or less for every token, the slope is "
        f"{SLOPE_RANGE[0]:g} to {SLOPE_RANGE[1]:g}, and y . y / dim is {SQUARE_RATIO_RANGE[0]:g} "
        f"to {SQUARE_RATIO_RANGE[1]:g} at the largest width."
    )
    chart = ChartSpec(name="square", x="dim", y="y . y", log_x=True, log_y=True)
    budgets = make_budget_table(
        seeds=(2, 8, 16),
        dims=([16, 64], [16, 64, 256, 1024], [16, 64, 256, 1024, 4096]),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        for dim in settings["dims"]:
            y = make_norm("layer", dim)(3 + 5 * torch.randn(256, dim)).detach()
            yield make_row("sum", (y.sum(-1) / dim).abs().max(), arm="layer", dim=dim)
            yield make_row("square", y.square().sum(-1).mean(), arm="layer", dim=dim)
            yield make_row("square", dim**0.5, arm="sqrt(dim), as quoted", dim=dim)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        squares = select_rows(rows, "square", arm="layer")
        dim = max((each["dim"] for each in squares), default=1)
        ratios = [{**each, "value": each["value"] / dim} for each in squares if each["dim"] == dim]
        return [
            Check(
                "largest |y . 1| / dim",
                estimate_per_seed(select_rows(rows, "sum"), max_value),
                high=MAX_ABS_MEAN,
            ),
            Check(
                "slope of ln(y . y) over ln(dim)",
                estimate_per_seed(squares, make_slope_statistic("dim", log_x=True, log_y=True)),
                *SLOPE_RANGE,
            ),
            Check(
                f"y . y / dim at dim {dim}",
                estimate_per_seed(ratios, max_value),
                *SQUARE_RATIO_RANGE,
            ),
        ]
