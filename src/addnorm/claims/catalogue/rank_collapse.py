"""Without residual connections all tokens turn into one direction."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.claims.at_init import (
    AtStart,
    Sizes,
    by_seed,
    each_seed,
    highest,
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

COLLAPSED = 0.99
NONE, SKIPS = "no skip", "with skips"
KINDS = {"attention alone": 1, "both kinds": 2}
"""How many of the two sub-layers of each layer are passed."""


FIRST, OF = 4, slope("layer", log_y=True)
"""Layers over which the slope is taken: further up rounding is all that is left."""
LEAST = 1e-12
"""Of 1 - cosine: what is below is rounding."""


@register(
    Card(
        name="rank_collapse",
        title="Without skips, one direction",
        formula="x <- N(f(x)): cos(x_s, x_t) -> 1 for all tokens s, t",
        paper=(
            "Dong, Cordonnier and Loukas, Attention is Not All You Need: Pure Attention Loses "
            "Rank Doubly Exponentially with Depth, 2021, arXiv 2103.03404"
        ),
        summary=(
            "Without residual connections the tokens of a sequence collapse to one direction "
            "within a few layers; with them they do so more slowly or not at all."
        ),
    )
)
class RankCollapse(AtStart):
    """The cosine between tokens of one sequence, layer by layer.

    cosine = mean over pairs s != t of x_s . x_t / (|x_s| |x_t|)

    x: (B, L, dim), behind each layer; a norm follows every sub-layer in all arms
    """

    # NOTE[DIFF]: the paper bounds the distance to a matrix of rank 1; the mean cosine is the same
    # question in a number that is easy to read. It has no norms, and here one follows every
    # sub-layer.
    place = "theorem 2.2 and section 4.2"
    experiment = (
        "Gaussian tokens go through the same layers at their start four times: through the "
        "attentions alone and through attention and feed-forward, both without skips and with "
        "them. A LayerNorm follows every sub-layer each time."
    )
    rule = (
        f"Without skips, through the attentions alone and through both kinds: the mean cosine "
        f"behind the last layer is above {COLLAPSED:g}; and 1 - cosine falls faster than with "
        "skips: the slope of its logarithm over the first layers, seed by seed, is lower. The "
        "cosine with skips is told and not judged."
    )
    pilot = (
        "a first run by another rule, which a reviewer found to be wrong: it hung on "
        "the depth. A floor of 1e-12 below 1 - cosine came after a run that had given "
        "slopes that are no numbers. Whoever wrote the rule of today had seen those "
        "rows."
    )
    corrected = True
    drawing = Drawing(name="cosine", x="layer", y="mean cosine between tokens")
    budgets = sizes(
        seeds=(2, 8, 16),
        depth=(2, 12, 24),
        dim=(16, 128, 512),
        length=(8, 32, 64),
    )

    def measure(self, at: Sizes) -> Iterator[Row]:
        """Each way through the same layers."""
        stack = stack_of("post_ln", at["depth"], at["dim"])
        start = torch.randn(4, at["length"], at["dim"])
        for kind, count in KINDS.items():
            for skip in (NONE, SKIPS):
                x = start.double()
                for layer in range(at["depth"]):
                    for sublayer in stack.double().sublayers[2 * layer : 2 * layer + count]:
                        with torch.no_grad():
                            branch = sublayer(x)
                        x = F.layer_norm(branch + x * (skip == SKIPS), (at["dim"],))
                    arm = f"{kind}, {skip}"
                    yield row("cosine", _cosine(x), arm=arm, layer=layer + 1)
                    apart = (1 - _cosine(x)).clamp(min=LEAST)
                    yield row("apart", apart, arm=arm, layer=layer + 1)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """Collapsed, and faster than with skips."""
        last = max((each["layer"] for each in rows), default=0)
        checks = []
        for kind in KINDS:
            bare, kept = (f"{kind}, {skip}" for skip in (NONE, SKIPS))
            there, slower = (
                each_seed(picked(rows, "cosine", arm=arm, layer=last), highest)
                for arm in (bare, kept)
            )
            falls = [
                by_seed([e for e in picked(rows, "apart", arm=arm) if e["layer"] <= FIRST], OF)
                for arm in (bare, kept)
            ]
            checks += [
                Check(f"{bare}: mean cosine behind layer {last}", there, low=COLLAPSED),
                Check(
                    f"{kind}: slope of ln(1 - cosine), no skip minus skips", paired(*falls), high=0
                ),
                Check(f"{kept}: mean cosine behind layer {last}", slower),
            ]
        return checks


def _cosine(x: Tensor) -> Tensor:
    unit = F.normalize(x, dim=-1)
    length = x.shape[1]
    everything = (unit @ unit.mT).sum((1, 2)) - length  # without each token beside itself
    return (everything / (length * (length - 1))).mean()
