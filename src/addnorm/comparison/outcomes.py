"""Outcome of a training run: trained, stuck or diverged, by the rules that the report prints.

The rules use progress: how far a loss moved from the baseline, the loss of a model that ignores its
input, to the best final loss of any cell in the comparison.

progress(loss) = (baseline - loss) / (baseline - best)

With baseline 3.0 and best 0.4, a final validation loss of 2.0 is progress 0.38 (trained), 2.9 is
progress 0.04. The second cell is stuck, unless its loss was once low (progress 0.5, loss 1.7) and
its training loss is high again: then it diverged. If the training loss is still low, the cell
over-fits, which counts as stuck.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from addnorm.comparison.statistics import Estimate
from addnorm.core.rows import Row

STATES = ("trained", "stuck", "diverged", "crashed", "cut", "waiting")
"""States of a cell. `cut` cells were stopped by halving; `waiting` cells are not finished."""
TRAINED_PROGRESS = 0.25
"""Minimum final progress of a trained cell."""
LEARNED_PROGRESS = 0.5
"""Progress that a cell must have reached once to count as diverged if it loses it again."""
DIVERGED_RATIO = 1.5
"""A cell diverged if its final loss exceeds baseline and own lowest loss by this factor."""
NO_LEARNING_RATIO = 0.95
"""If the best loss is above this fraction of the baseline, no cell trained."""
RULES = (
    "The baseline is the loss of {baseline}. "
    "Progress is the fraction of the way from the baseline (0) to the lowest final validation loss "
    "of any cell (1). A cell has trained if the progress of its final validation loss is at least "
    "0.25. A cell has diverged if a loss or a gradient was not finite, if its final validation "
    "loss is more than 1.5 times both the baseline and its own lowest loss, or if it once reached "
    "progress 0.5 and ends below 0.25 in training and in validation. All other cells are stuck: "
    "too slow for this number of steps, or over-fitted. If no cell gets 5 % below the baseline, "
    "none has trained."
)


METRIC_RULES = (
    "The baseline is the {label} of {baseline}. "
    "Progress is the fraction of the way from the baseline (0) to the {best} final {label} of any "
    "cell (1). A cell has trained if the progress of its final {label} is at least 0.25. A cell "
    "has diverged if a value was not finite, if its final {label} is {far_off} both the baseline "
    "and its own {best} {label}, or if it once reached progress 0.5 and ends below 0.25. All other "
    "cells are stuck. If no cell gets 5 % {better} the baseline, none has trained."
)
"""The same rules for a metric that is not a loss."""


@dataclass(frozen=True)
class Objective:
    """What cells are judged by. Inside a comparison it is a loss: lower is better."""

    label: str = "validation loss"
    """Name in tables and sentences."""
    column: str = "loss"
    """Name in data frames and CSV files."""
    maximize: bool = False
    """Whether higher values are better; then the loss is the value with the opposite sign."""

    def to_loss(self, value: float) -> float:
        """Return a value of the metric as a loss, or a loss as a value of the metric."""
        return -value if self.maximize else value

    def to_estimate(self, loss: Estimate) -> Estimate:
        """Return the estimate of a loss as one of the metric."""
        return replace(loss, mean=self.to_loss(loss.mean))


VALIDATION_LOSS = Objective()


def format_rules(baseline_description: str, objective: Objective = VALIDATION_LOSS) -> str:
    """Return the rules as text.

    Args:
        baseline_description: the model whose loss is the baseline
        objective: what cells are judged by
    """
    if objective == VALIDATION_LOSS:
        return RULES.format(baseline=baseline_description)
    words = {"best": "lowest", "better": "below", "far_off": "more than 1.5 times"}
    if objective.maximize:
        words = {"best": "highest", "better": "above", "far_off": "less than half of"}
    return METRIC_RULES.format(baseline=baseline_description, label=objective.label, **words)


@dataclass(frozen=True)
class LossSummary:
    """The losses of one run that decide its outcome."""

    last: float
    """Last validation loss; NaN if there was no validation."""
    lowest: float
    """Lowest loss: over all validations and over the mean training loss of each tenth."""
    recent: float
    """Mean training loss over the last tenth of the run."""
    has_nonfinite: bool = False
    """Whether the run stopped because a loss or a gradient was not finite."""

    @classmethod
    def from_rows(cls, rows: Iterable[Row], *, has_nonfinite: bool = False) -> "LossSummary":
        """Compute the summary from the rows of a run, in their order."""
        losses = [row for row in rows if row["name"] == "loss" and row.get("site") is None]
        train, valid = (
            [float(row["value"]) for row in losses if row.get("split") == split]
            for split in ("train", "valid")
        )
        bounds = [len(train) * n // 10 for n in range(11)]
        tenths = [train[start:end] for start, end in pairwise(bounds) if start < end]
        means = [math.fsum(tenth) / len(tenth) for tenth in tenths]
        finite = [value for value in (*means, *valid) if math.isfinite(value)]
        return cls(
            last=valid[-1] if valid else math.nan,
            lowest=min(finite, default=math.nan),
            recent=means[-1] if means else math.nan,
            has_nonfinite=has_nonfinite,
        )


def classify_outcome(summary: LossSummary, *, baseline: float, best: float) -> str:
    """Return trained, stuck or diverged.

    Args:
        summary: the losses of the run
        baseline: validation loss of a model that ignores its input
        best: lowest final validation loss of all cells
    """
    last = summary.last
    if (
        summary.has_nonfinite
        or not math.isfinite(last)
        or last > _scale(max(baseline, summary.lowest), DIVERGED_RATIO)
    ):
        return "diverged"
    if math.isnan(baseline):  # a task of one's own that logs nothing before its end
        return "trained"
    if best > _scale(baseline, NO_LEARNING_RATIO):
        return "stuck"
    if progress(last, baseline=baseline, best=best) >= TRAINED_PROGRESS:
        return "trained"
    best_progress, train_progress = (
        progress(loss, baseline=baseline, best=best) for loss in (summary.lowest, summary.recent)
    )
    # An over-fitted cell keeps its progress in training. `not >=` treats an unknown (NaN) training
    # loss as lost progress.
    lost = best_progress >= LEARNED_PROGRESS and not train_progress >= TRAINED_PROGRESS
    return "diverged" if lost else "stuck"


def _scale(loss: float, ratio: float) -> float:
    """Return a loss made larger by `ratio`; a negative one moves by the same distance up."""
    return loss * (ratio if loss > 0 else 2 - ratio)


def progress(loss: float, *, baseline: float, best: float) -> float:
    """Return the fraction of the way from the baseline to the best loss; negative if worse."""
    return (baseline - loss) / (baseline - best)
