"""BatchNorm's statistics do not fit sequences of other lengths than it was trained on."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from addnorm.claims.base import Drawing, register
from addnorm.claims.start import (
    AtStart,
    Sizes,
    by_seed,
    each_seed,
    highest,
    picked,
    row,
    sizes,
    stack_of,
)
from addnorm.claims.verdict import Check
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.lab.statistics import paired
from addnorm.stacks import Encoder

DRIFTS, STAYS = 0.1, 1e-3
AXES: dict[str, tuple[int, ...]] = {"batch": (0, 1), "layer": (-1,)}
"""Over which axes of (B, L, dim) each norm takes its mean."""


@register(
    Card(
        name="batch_statistics",
        title="Statistics of other lengths",
        formula="mean(BN(x)) moves away from 0 with the length of x, mean(LN(x)) does not",
        paper=(
            "Shen et al., PowerNorm: Rethinking Batch Normalization in Transformers, 2020, "
            "arXiv 2003.07845; Ba, Kiros and Hinton, Layer Normalization, 2016, arXiv 1607.06450"
        ),
        summary=(
            "BatchNorm's statistics drift on sequences longer than those of training, and what it "
            "puts out is no longer normalized; LayerNorm's are those of the token at hand."
        ),
    )
)
class BatchStatistics(AtStart):
    """How far the mean of what a norm puts out is from 0, over the axes that are its own.

    drift = sqrt(mean(m ** 2)), m = mean of y over tokens (batch) or over features (layer)

    y: (B, L, dim), behind the last norm of a stack, in evaluation mode
    """

    place = "section 3 of Shen et al.; section 3.1 of Ba et al."
    experiment = (
        "Post-LN encoders with sinusoidal positions, one with BatchNorm and one with LayerNorm, "
        "read many batches of short sequences in training mode, so that BatchNorm's running "
        "statistics settle; no weight is changed. Then, in evaluation mode, they read sequences "
        "of lengths seen and not seen before."
    )
    rule = (
        f"BatchNorm: the drift at the largest length is at least {DRIFTS:g} above that at the "
        f"seen length, seed by seed. LayerNorm: the drift at the largest length is {STAYS:g} or "
        "less."
    )
    drawing = Drawing(name="drift", x="length", y="drift of the mean", log_x=True)
    budgets = sizes(
        seeds=(2, 8, 16),
        dim=(16, 64, 256),
        batches=(20, 200, 500),
        seen=(8, 32, 64),
        lengths=([8, 32], [32, 64, 128, 256], [64, 128, 256, 512, 1024]),
    )

    def measure(self, at: Sizes) -> Iterator[Row]:
        """Settle, then look."""
        table = torch.randn(64, at["dim"])
        for norm, axes in AXES.items():
            stack = stack_of("post_ln", 2, at["dim"], norm=norm, positions="sinusoid")
            stack.train()
            for _ in range(at["batches"]):
                _read(stack, table, at["seen"])
            stack.eval()
            for length in at["lengths"]:
                mean = _read(stack, table, length, sequences=32).mean(axes)
                drift = mean.square().mean().sqrt()
                yield row("drift", drift, arm=norm, length=length, seen=at["seen"])

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """Beyond what is seen."""
        longest = max((each["length"] for each in rows), default=0)
        batch, layer = (picked(rows, "drift", arm=arm) for arm in AXES)
        far, near = (
            by_seed([each for each in batch if each["length"] == length], highest)
            for length in (longest, min((each["seen"] for each in rows), default=0))
        )
        there = [each for each in layer if each["length"] == longest]
        return [
            Check(
                f"batch: drift at length {longest} minus that at the seen one",
                paired(far, near),
                low=DRIFTS,
            ),
            Check(f"layer: drift at length {longest}", each_seed(there, highest), high=STAYS),
        ]


@torch.no_grad()
def _read(stack: Encoder, table: Tensor, length: int, sequences: int = 8) -> Tensor:
    y: Tensor = stack(table[torch.randint(len(table), (sequences, length))])
    return y
