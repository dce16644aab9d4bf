"""x + N(f(x)) is neither Post-LN nor Pre-LN: its stream follows a law of its own."""

from collections.abc import Iterator, Sequence

import torch

from addnorm.claims.at_init import (
    AtStart,
    Sizes,
    anew,
    by_seed,
    each_seed,
    picked,
    row,
    sizes,
    slope,
    stack_of,
)
from addnorm.claims.checks import Check
from addnorm.claims.claim import Drawing, register
from addnorm.comparison.statistics import paired
from addnorm.core.cards import Card
from addnorm.core.rows import Row

FACTOR = 3.0
"""By which the last matrix of every branch is multiplied."""
ONE = (0.8, 1.2)
SAME = (-0.05, 0.05)
GROWS = 2.0
ARMS = ("post_ln", "pre_ln", "res_post")


@register(
    Card(
        name="third_position",
        title="A third position",
        formula="x + N(f(x)): Var x_i = Var x_0 + i, whatever the size of f",
        paper=(
            "Tay et al., Efficient Transformers: A Survey, 2020, arXiv 2009.06732, where it "
            "stands for Post-LN; Liu et al., Swin Transformer V2, 2021, arXiv 2111.09883"
        ),
        summary=(
            "A norm behind the branch, x + N(f(x)), is neither Post-LN, whose stream stays as "
            "large as it is, nor Pre-LN, whose growth depends on the weights."
        ),
    )
)
class ThirdPosition(AtStart):
    """By how much the variance of the stream grows at a site.

    growth = slope of Var x_i over i

    x_i: (B, L, dim), the stream behind site i; its variance over features, the mean over tokens
    """

    said_by = "ours, on a form that Tay et al., 2020, call Post-LN"
    place = "section 2.1 of Tay et al.; section 3.2 of Liu et al."
    experiment = (
        "Encoders at their start read Gaussian vectors, once as they are and once with the last "
        f"matrix of every branch times {FACTOR:g}. A line is laid through the variance of the "
        "stream over the number of the site."
    )
    rule = (
        f"Res-post grows by {ONE[0]:g} to {ONE[1]:g} a site, and by the same (within {SAME[1]:g}) "
        f"with larger matrices; Post-LN by {SAME[0]:g} to {SAME[1]:g}; and Pre-LN by at least "
        f"{GROWS:g} more a site with larger matrices than with the usual ones."
    )
    drawing = Drawing(
        name="variance", x="site", y="variance of the stream", by=("arm", "matrices"), log_y=True
    )
    budgets = sizes(
        seeds=(2, 8, 16),
        depth=(3, 12, 48),
        dim=(16, 128, 512),
        length=(8, 32, 64),
    )

    def measure(self, at: Sizes) -> Iterator[Row]:
        """A forward of each arm, with both sizes of matrices."""
        for wiring in ARMS:
            anew(at["seed"])
            x = torch.randn(4, at["length"], at["dim"])
            stack = stack_of(wiring, at["depth"], at["dim"])
            for matrices in ("usual", f"times {FACTOR:g}"):
                with torch.no_grad(), stack.taps.record() as tape:
                    stack(x)
                for site, stream in enumerate(tape["stream"], start=1):
                    variance = stream.var(-1, correction=0).mean()
                    yield row("variance", variance, arm=wiring, matrices=matrices, site=site)
                with torch.no_grad():
                    for role, weight in stack.weights():
                        weight.mul_(FACTOR if role in ("out", "ffn_out") else 1.0)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """Three laws."""
        of = slope("site")
        large = f"times {FACTOR:g}"

        def growth(arm: str, matrices: str) -> dict[int, float]:
            return by_seed(picked(rows, "variance", arm=arm, matrices=matrices), of)

        usual = {arm: picked(rows, "variance", arm=arm, matrices="usual") for arm in ARMS}
        return [
            Check("res_post: growth a site", each_seed(usual["res_post"], of), *ONE),
            Check(
                f"res_post: growth with matrices {large} minus that with usual ones",
                paired(growth("res_post", large), growth("res_post", "usual")),
                *SAME,
            ),
            Check("post_ln: growth a site", each_seed(usual["post_ln"], of), *SAME),
            Check(
                f"pre_ln: growth with matrices {large} minus that with usual ones",
                paired(growth("pre_ln", large), growth("pre_ln", "usual")),
                low=GROWS,
            ),
        ]
