"""What became of a training: trained, stuck or diverged, by rules that the report prints.

The measure is progress: how much of the way a loss went from a model that knows nothing of the
input, only how often each answer occurs, to the best that any cell of the comparison reached.

progress(loss) = (baseline - loss) / (baseline - best)
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from addnorm.core.rows import Row

STATES = ("trained", "stuck", "diverged", "crashed", "cut", "waiting")
"""What a cell can be; cut by halving, waiting if it has not ended."""
TRAINED_PROGRESS = 0.25
"""Progress from which on a cell has trained."""
LEARNED_PROGRESS = 0.5
"""Progress that counts as having learnt, if it is lost again."""
DIVERGED_RATIO = 1.5
"""Times the baseline, and the cell's own lowest loss: one that ends above both has diverged."""
NO_LEARNING_RATIO = 0.95
"""Share of the baseline that the best cell must get below; else nothing was learnt at all."""
RULES = (
    "The baseline is the loss of {ignorant}. "
    "Progress is the share of the way from it (0) to the lowest final validation loss of any cell "
    "(1). A cell has trained if its final validation loss shows progress of a quarter or more. It "
    "has diverged if a loss or a gradient was not finite, if it ends one and a half times above "
    "both the baseline and its own lowest loss, or if it once had half of the way behind it and "
    "ends with less than a quarter, in training as well as in validation. Otherwise it is stuck, "
    "too slow for these steps, or has learnt by heart. If no cell gets 5 % below the baseline, "
    "none has trained."
)


def format_rules(baseline_description: str) -> str:
    """The rules in words. ignorant: the model that the baseline is the loss of."""
    return RULES.format(ignorant=baseline_description)


@dataclass(frozen=True)
class LossSummary:
    """What a judge must know of the losses of a cell."""

    last: float
    """The last validation loss; NaN if there was none."""
    lowest: float
    """The lowest loss it ever had: of validations, and of tenths of the training on average."""
    recent: float
    """The mean training loss over the last tenth."""
    has_nonfinite: bool = False
    """Whether training ended because a loss or a gradient was not finite."""

    @classmethod
    def from_rows(cls, rows: Iterable[Row], *, has_nonfinite: bool = False) -> "LossSummary":
        """Out of the rows of a run, in their order."""
        losses = [row for row in rows if row["name"] == "loss" and row.get("site") is None]
        train, valid = (
            [float(row["value"]) for row in losses if row.get("split") == split]
            for split in ("train", "valid")
        )
        tenths = [len(train) * n // 10 for n in range(11)]
        parts = [train[start:end] for start, end in pairwise(tenths) if start < end]
        means = [math.fsum(part) / len(part) for part in parts]
        finite = [value for value in (*means, *valid) if math.isfinite(value)]
        return cls(
            last=valid[-1] if valid else math.nan,
            lowest=min(finite, default=math.nan),
            recent=means[-1] if means else math.nan,
            has_nonfinite=has_nonfinite,
        )


def classify_outcome(summary: LossSummary, *, baseline: float, best: float) -> str:
    """trained, stuck or diverged.

    baseline: loss of a model that knows nothing. best: lowest final validation loss of all cells.
    """
    last = summary.last
    if (
        summary.has_nonfinite
        or not math.isfinite(last)
        or last > DIVERGED_RATIO * max(baseline, summary.lowest)
    ):
        return "diverged"
    if best > NO_LEARNING_RATIO * baseline:
        return "stuck"
    now = progress(last, baseline=baseline, best=best)
    if now >= TRAINED_PROGRESS:
        return "trained"
    once, lately = (
        progress(loss, baseline=baseline, best=best) for loss in (summary.lowest, summary.recent)
    )
    lost = (
        once >= LEARNED_PROGRESS and not lately >= TRAINED_PROGRESS
    )  # who learns by heart has lost nothing
    return "diverged" if lost else "stuck"


def progress(loss: float, *, baseline: float, best: float) -> float:
    """Share of the way from the baseline to the best; below 0 if worse than the baseline."""
    return (baseline - loss) / (baseline - best)
