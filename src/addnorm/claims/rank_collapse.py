"""Without residual connections all tokens turn into one direction."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.claims.base import Drawing, register
from addnorm.claims.start import AtStart, Sizes, each_seed, highest, picked, row, sizes, stack_of
from addnorm.claims.verdict import Check
from addnorm.core.cards import Card
from addnorm.core.rows import Row

COLLAPSED, APART = 0.99, 0.9
ATTENTION, BOTH, SKIPS = "attention alone, no skip", "both kinds, no skip", "post_ln, with skips"


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
            "within a few layers; with them they stay apart."
        ),
    )
)
class RankCollapse(AtStart):
    """The cosine between tokens of one sequence, layer by layer.

    cosine = mean over pairs s != t of x_s . x_t / (|x_s| |x_t|)

    x: (B, L, dim), behind each layer; a norm follows every sub-layer in all arms
    """

    # NOTE[DIFF]: the paper bounds the distance to a matrix of rank 1; the mean cosine is the same
    # question in a number that is easy to read.
    place = "theorem 2.2 and section 4.2"
    experiment = (
        "Gaussian tokens go through the same layers at their start three times: through the "
        "attentions alone without skips, through attention and feed-forward without skips, and as "
        "in Post-LN. A LayerNorm follows every sub-layer each time."
    )
    rule = (
        f"Behind the last layer the mean cosine is {COLLAPSED:g} or more in both arms without "
        f"skips, and {APART:g} or less with skips."
    )
    drawing = Drawing(name="cosine", x="layer", y="mean cosine between tokens")
    budgets = sizes(
        seeds=(2, 8, 16),
        depth=(2, 6, 24),
        dim=(16, 128, 512),
        length=(8, 32, 64),
    )

    def measure(self, at: Sizes) -> Iterator[Row]:
        """Each way through the same layers."""
        stack = stack_of("post_ln", at["depth"], at["dim"])
        start = torch.randn(4, at["length"], at["dim"])
        for arm in (ATTENTION, BOTH, SKIPS):
            x = start
            for layer in range(at["depth"]):
                for sublayer in stack.sublayers[2 * layer : 2 * layer + 1 + (arm != ATTENTION)]:
                    with torch.no_grad():
                        branch = sublayer(x)
                    x = F.layer_norm(branch + x * (arm == SKIPS), (at["dim"],))
                yield row("cosine", _cosine(x), arm=arm, layer=layer + 1)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """Behind the last layer."""
        last = max((each["layer"] for each in rows), default=0)
        return [
            Check(
                f"{arm}: mean cosine behind layer {last}",
                each_seed(picked(rows, "cosine", arm=arm, layer=last), highest),
                **wanted,
            )
            for arm, wanted in (
                (ATTENTION, {"low": COLLAPSED}),
                (BOTH, {"low": COLLAPSED}),
                (SKIPS, {"high": APART}),
            )
        ]


def _cosine(x: Tensor) -> Tensor:
    unit = F.normalize(x, dim=-1)
    length = x.shape[1]
    everything = (unit @ unit.mT).sum((1, 2)) - length  # without each token beside itself
    return (everything / (length * (length - 1))).mean()
