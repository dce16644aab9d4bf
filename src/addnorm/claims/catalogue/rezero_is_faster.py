"""Claim: ReZero converges in fewer steps than Pre-LN."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, ChartSpec, register
from addnorm.claims.deep_training_claims import WITH_AND_WITHOUT_WARMUP, describe_deep_experiment
from addnorm.claims.experiments import deep_comparison
from addnorm.claims.progress_scale import best_setting_rows
from addnorm.claims.training_claims import ComparisonClaim
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row

TARGET_PROGRESS = 0.5


@register(
    Card(
        name="rezero_is_faster",
        title="ReZero is faster",
        formula="steps to half of the way: x + alpha * f(x) < x + f(N(x))",
        paper=(
            "Bachlechner et al., ReZero is All You Need: Fast Convergence at Large Depth, 2020, "
            "arXiv 2003.04887"
        ),
        summary="Deep Transformers with ReZero converge in fewer steps than those with norms.",
    )
)
class RezeroIsFaster(ComparisonClaim):
    """Steps until an arm reaches half of the progress.

    steps = the step at which the progress of the validation loss first reaches 0.5, interpolated
        between validations; the number of steps of the budget if it never does
    """

    # NOTE[DIFF]: the paper counts steps to 1.2 bits per byte on enwik8 with twelve layers.
    paper_location = "section 5.1 and table 2"
    about = ("rezero", "pre_ln")
    finding = (
        "ReZero needs {exp:ln(steps to progress 0.5), rezero minus pre_ln} times the steps of "
        "Pre-LN to half of Pre-LN's final progress"
    )
    measured_on = "dates, 12+12 layers of width 32, 150 steps"
    reach = "not tested: long training, larger models"
    experiment = describe_deep_experiment(
        f"ReZero without warm-up, Pre-LN {WITH_AND_WITHOUT_WARMUP}; the validation loss is taken "
        "every 15 steps (100 in the full budget)"
    )
    rule = (
        f"Premise: both arms reach progress {TARGET_PROGRESS:g} with more than half of the seeds, "
        "each at its best setting. ReZero needs fewer steps to get there than Pre-LN: the "
        "difference of the logarithms, seed by seed, is below 0."
    )
    pilot = (
        f"{ComparisonClaim.pilot} Of the seeds told here the final losses of ReZero, and of Pre-LN "
        "without warm-up, had been seen in rezero_trains_deep, but no curve."
    )
    chart = ChartSpec(
        name="valid", x="step", y="progress", guides=((TARGET_PROGRESS, "half of the way"),)
    )
    row_names = ("progress", "valid")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {
            "deep": deep_comparison(
                budget, ["pre_ln"], arms_without_warmup=["rezero"], seeds=4, valid_every=15
            )
        }

    def chart_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        scaled = self.scale_rows(rows)
        return [row for arm in ("rezero", "pre_ln") for row in best_setting_rows(scaled, arm=arm)]

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        steps_by_arm = {
            arm: _steps_to_target(best_setting_rows(rows, arm=arm)) for arm in ("rezero", "pre_ln")
        }
        reached = [
            Check(
                f"{arm}: share of seeds that reach progress {TARGET_PROGRESS:g}",
                estimate_over_seeds({seed: float(done) for seed, (_, done) in steps.items()}),
                low=0.5,
                premise=True,
            )
            for arm, steps in steps_by_arm.items()
        ]
        logs = (
            {seed: math.log(step) for seed, (step, _) in steps.items()}
            for steps in steps_by_arm.values()
        )
        what = f"ln(steps to progress {TARGET_PROGRESS:g}), rezero minus pre_ln"
        return [*reached, Check(what, paired_difference(*logs), high=0)]


def _steps_to_target(rows: Sequence[Row]) -> dict[int, tuple[float, bool]]:
    """Return by seed the step that reaches the target (or the last step), and whether one does."""
    curves: dict[int, list[tuple[float, float]]] = {row["seed"]: [(0.0, 0.0)] for row in rows}
    total = max((row["steps"] for row in rows if row["name"] == "valid"), default=1)
    for row in rows:
        if row["name"] == "valid":
            curves[row["seed"]].append((row["step"], row["value"]))
    return {seed: _interpolate_crossing(sorted(curve), total) for seed, curve in curves.items()}


def _interpolate_crossing(curve: Sequence[tuple[float, float]], total: float) -> tuple[float, bool]:
    for (before, low), (after, high) in pairwise(curve):
        if high >= TARGET_PROGRESS:
            return before + (after - before) * (TARGET_PROGRESS - low) / (high - low), True
    return total, False
