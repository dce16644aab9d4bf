"""Claim: the gradient at the input shrinks with depth in Post-LN and not in Pre-LN."""

import math
from collections.abc import Iterator, Sequence

import torch

from addnorm.claims.checks import Check, estimate_over_seeds
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
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.stacks import Decoder, Encoder

ARMS = {
    "post_ln encoder": (Encoder, "post_ln"),
    "post_ln decoder": (Decoder, "post_ln"),
    "pre_ln encoder": (Encoder, "pre_ln"),
    "pre_ln decoder": (Decoder, "pre_ln"),
}


@register(
    Card(
        name="gradient_product",
        title="Gradients shrink in Post-LN",
        formula="d E / d x_0 = d E / d x_L * prod_l J_LN * prod_l (1 + d F / d x) in Post-LN",
        paper=(
            "Wang et al., Learning Deep Transformer Models for Machine Translation, 2019, "
            "arXiv 1906.01787"
        ),
        summary=(
            "In Post-LN the gradient passes the norm of every layer and shrinks with depth as a "
            "product; in Pre-LN it bypasses all norms and does not shrink."
        ),
    )
)
class GradientProduct(InitClaim):
    """Ratio of the stream's gradient below the first layer to that above the last layer.

    ratio = |d E / d x_0| / |d E / d x_L|

    x_0: (B, L, dim), the stream that enters the first layer
    x_L: (B, L, dim), the stream that the last layer leaves, before any final norm
    """

    paper_location = "section 2.2, equations 5 and 6"
    about = ("post_ln", "pre_ln")
    finding = (
        "all layers together multiply the gradient by {exp:encoder: ln(ratio) of the deepest "
        "stack, post_ln} in Post-LN encoders, {exp:decoder: ln(ratio) of the deepest stack, "
        "post_ln} in Post-LN decoders and {exp:encoder: ln(ratio) of the deepest stack, pre_ln} in "
        "Pre-LN encoders"
    )
    measured_on = "untrained stacks of 36 layers of width 64"
    reach = (
        "at initialization only, and too little to be called vanishing; decoders read random "
        "vectors, not an encoder"
    )
    discussion = (
        "The factors 1 + dF/dx of the product are larger than 1 and make up for most of what the "
        "norms take away; in decoders each layer has a third branch, cross-attention to a memory. "
        "Liu et al. 2020 find vanishing gradients in decoders alone, in models that read the "
        "output of an encoder."
    )
    experiment = (
        "Untrained encoders, and decoders that read Gaussian vectors instead of an encoder's "
        "output; the error is a random linear function of the output. The gradient with respect "
        "to the stream below the first layer is divided by that above the last layer. For "
        "comparison: the simplified model of Xiong et al. 2020 predicts a slope of ln(ratio) over "
        "depth of ln(2/3) / 2 = -0.2."
    )
    rule = (
        "In encoder and decoder, at the largest depth: the logarithm of the ratio is below 0 in "
        "Post-LN, below that of Pre-LN, seed by seed, and above 0 in Pre-LN. Its slope over "
        "depth is told and not judged."
    )
    pilot = (
        "a first run by another rule, which a reviewer found to be wrong: it had a rate "
        "without a source, and no decoder. Then rounds of 8, 32, 24 and 96 other seeds whose rules "
        "judged the slope over depth by the borders 0 and -0.01, all undecided; in the last it was "
        "-0.013 ± 0.005 in the encoder and -0.009 ± 0.004 in the decoder, close to the border, "
        "which had no source either. Its rows show that the spread of the logarithm grows with "
        "depth as that of a random walk, so that a line through all depths is a poor estimate; at "
        "36 layers it was -0.76 ± 0.14 and -0.34 ± 0.12. Hence the rule of today, for 96 other "
        "seeds, of which none had been looked at when it was written."
    )
    corrected = True
    has_new_rows = True
    chart = ChartSpec(
        name="ratio", x="depth", y="gradient at the lowest / at the highest layer", log_y=True
    )
    budgets = make_budget_table(
        seeds=(2, 96, 32),
        first_seed=(0, 700, 0),
        depths=([2, 4], [6, 18, 36], [6, 12, 18, 24, 36, 48, 72]),
        dim=(16, 64, 256),
        length=(8, 32, 64),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        for arm, (kind, wiring) in ARMS.items():
            for depth in settings["depths"]:
                reseed(settings["seed"])
                x, memory, weights = torch.randn(3, 4, settings["length"], settings["dim"])
                x.requires_grad_()
                heads = max(1, settings["dim"] // 16)
                pair = {"other_depth": depth} if kind is Decoder else {}
                stack = kind(dim=settings["dim"], depth=depth, heads=heads, wiring=wiring, **pair)
                with stack.taps.record() as tape:
                    y = stack(x, **({"memory": memory} if pair else {}))
                low, high = torch.autograd.grad((y * weights).mean(), (x, tape["stream"][-1]))
                yield make_row("ratio", low.norm() / high.norm(), arm=arm, depth=depth)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        deepest = max((row["depth"] for row in rows), default=0)
        fit = make_slope_statistic("depth", log_y=True)
        checks = []
        for kind in ("encoder", "decoder"):
            post, pre = (
                {
                    row["seed"]: math.log(row["value"])
                    for row in select_rows(rows, "ratio", arm=f"{wiring} {kind}", depth=deepest)
                }
                for wiring in ("post_ln", "pre_ln")
            )
            slope = estimate_per_seed(select_rows(rows, "ratio", arm=f"post_ln {kind}"), fit)
            label = f"{kind}: ln(ratio) of the deepest stack"
            checks += [
                Check(f"{label}, post_ln", estimate_over_seeds(post), high=0),
                Check(f"{label}, post_ln minus pre_ln", paired_difference(post, pre), high=0),
                Check(f"{label}, pre_ln", estimate_over_seeds(pre), low=0),
                Check(f"{kind}: slope of ln(ratio) a layer, post_ln", slope),
            ]
        return checks
