"""ReZero converges faster."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from addnorm.claims.base import Budget, Drawing, register
from addnorm.claims.fields import deep
from addnorm.claims.training import PROGRESS, ByTraining, best_setting
from addnorm.claims.verdict import Check
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.lab.spec import Comparison
from addnorm.lab.statistics import paired

HALF = 0.5


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
class RezeroIsFaster(ByTraining):
    """Steps until half of the way is behind an arm.

    steps = the step at which progress of the validation loss first reaches 0.5, interpolated
        between validations; all steps, if it never does
    """

    # NOTE[DIFF]: the paper counts steps to 1.2 bits per byte on enwik8 with twelve layers.
    place = "section 5.1 and table 2"
    experiment = (
        "Encoder and decoder of twelve layers each (eighteen in the full budget) learn to "
        "translate dates without warm-up, over one ladder of learning rates, and are validated "
        "often. " + PROGRESS
    )
    rule = (
        f"Each at its best learning rate, ReZero needs fewer steps to progress {HALF:g} than "
        "Pre-LN: the difference of their logarithms, seed by seed, is below 0."
    )
    drawing = Drawing(name="valid", x="step", y="progress", guides=((HALF, "half of the way"),))
    wanted = ("progress", "valid")

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        """Two arms without warm-up."""
        return {"deep": deep(budget, ["rezero", "pre_ln"])}

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """How many steps fewer."""
        steps = {arm: _steps(best_setting(rows, arm=arm)) for arm in ("rezero", "pre_ln")}
        what = f"ln(steps to progress {HALF:g}), rezero minus pre_ln"
        return [Check(what, paired(steps["rezero"], steps["pre_ln"]), high=0)]


def _steps(rows: Sequence[Row]) -> dict[int, float]:
    """By seed: ln of the step at which half of the way is reached."""
    curves: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if row["name"] == "valid":
            curves.setdefault(row["seed"], [(0.0, 0.0)]).append((row["step"], row["value"]))
    return {seed: math.log(_reached(sorted(curve))) for seed, curve in curves.items()}


def _reached(curve: Sequence[tuple[float, float]]) -> float:
    for (before, low), (after, high) in pairwise(curve):
        if high >= HALF:
            return before + (after - before) * (HALF - low) / (high - low)
    return curve[-1][0]
