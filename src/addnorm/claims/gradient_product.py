"""The gradient that reaches the input: a shrinking product in Post-LN, not in Pre-LN."""

import math
from collections.abc import Iterator, Sequence

import torch

from addnorm.claims.base import Drawing, register
from addnorm.claims.start import AtStart, Sizes, each_seed, picked, row, sizes, slope, stack_of
from addnorm.claims.verdict import Check
from addnorm.core.cards import Card
from addnorm.core.rows import Row

LOSS_A_LAYER = -0.05
"""Slope of ln(ratio) from which on a gradient shrinks: a twentieth a layer."""
DOUBLED = (1.5, 2.5)
"""How much longer ln(ratio) is at twice the depth, if the ratio is a product over layers."""


@register(
    Card(
        name="gradient_product",
        title="A product of Jacobians",
        formula="d E / d x_0 = d E / d x_L * prod_l J_LN * prod_l (1 + d F / d x) in Post-LN",
        paper=(
            "Wang et al., Learning Deep Transformer Models for Machine Translation, 2019, "
            "arXiv 1906.01787"
        ),
        summary=(
            "In Post-LN the gradient has to pass the norm of every layer and shrinks with depth "
            "as a product; in Pre-LN it reaches the lowest layer past all norms and does not."
        ),
    )
)
class GradientProduct(AtStart):
    """The gradient at the lowest place of the stream, as a share of that at the highest.

    ratio = |d E / d x_0| / |d E / d x_L|

    x_0: (B, L, dim), the stream that enters the first layer
    x_L: (B, L, dim), the stream that the last layer leaves, before any final norm
    """

    place = "section 2.2, equations 5 and 6"
    experiment = (
        "Encoders at their start read random vectors; the error is a random linear function of "
        "what comes out. The gradient with respect to the stream below the first layer is divided "
        "by that above the last layer, and a line is laid through the logarithm of this ratio "
        "over depth."
    )
    rule = (
        f"Post-LN: the slope is {LOSS_A_LAYER:g} a layer or less, and at twice the depth ln(ratio) "
        f"is {DOUBLED[0]:g} to {DOUBLED[1]:g} times as long, as it is for a product. Pre-LN: the "
        f"slope is {LOSS_A_LAYER:g} or more."
    )
    drawing = Drawing(
        name="ratio", x="depth", y="gradient at the lowest / at the highest layer", log_y=True
    )
    budgets = sizes(
        seeds=(2, 8, 16),
        depths=([2, 4], [6, 12, 18, 24, 36], [6, 12, 18, 24, 36, 48, 72]),
        dim=(16, 64, 256),
        length=(8, 32, 64),
    )

    def measure(self, at: Sizes) -> Iterator[Row]:
        """One backward pass for each wiring and depth."""
        for wiring in ("post_ln", "pre_ln"):
            for depth in at["depths"]:
                x = torch.randn(4, at["length"], at["dim"], requires_grad=True)
                stack = stack_of(wiring, depth, at["dim"])
                with stack.taps.record() as tape:
                    y = stack(x)
                error = (y * torch.randn_like(y)).mean()
                low, high = torch.autograd.grad(error, (x, tape["stream"][-1]))
                yield row("ratio", low.norm() / high.norm(), arm=wiring, depth=depth)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """Slopes of both, and the law of a product for Post-LN."""
        post, pre = (picked(rows, "ratio", arm=arm) for arm in ("post_ln", "pre_ln"))
        of = slope("depth", log_y=True)
        return [
            Check("slope of post_ln, ln(ratio) a layer", each_seed(post, of), high=LOSS_A_LAYER),
            Check(
                "post_ln, ln(ratio) at twice the depth over that at once",
                each_seed(post, _doubled),
                *DOUBLED,
            ),
            Check("slope of pre_ln, ln(ratio) a layer", each_seed(pre, of), low=LOSS_A_LAYER),
        ]


def _doubled(rows: list[Row]) -> float:
    """ln(ratio) at the deepest depth whose half was measured, too, over that at the half."""
    at = {row["depth"]: row["value"] for row in rows}
    deep = max((depth for depth in at if depth / 2 in at), default=None)
    if deep is None or min(at[deep], at[deep // 2]) <= 0 or at[deep // 2] == 1:
        return math.nan
    return math.log(at[deep]) / math.log(at[deep // 2])
