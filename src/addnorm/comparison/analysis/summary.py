"""Summary of each arm at each depth, over its settings and seeds."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Protocol

from addnorm.comparison.analysis.arm_summary import (
    UNKNOWN_STATES,
    ArmSummary,
    Setting,
    StableRange,
)
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Cell
from addnorm.comparison.outcomes import VALIDATION_LOSS, Objective
from addnorm.comparison.statistics import CONFIDENCE_LEVEL, Estimate, paired_difference

REFERENCE_WIRING = "pre_ln"
"""Wiring whose speed is 1 in the summary, if it takes part."""


class EndedCell(Protocol):
    """The attributes of `CellOutcome` that summaries use."""

    @property
    def cell(self) -> Cell:
        """Arm, depth, warm-up, learning rate and seed of the training run."""

    @property
    def state(self) -> str:
        """State of the cell; see `outcomes.STATES`."""

    @property
    def end(self) -> CellResult | None:
        """Result of the cell; None until it is finished."""

    @property
    def loss(self) -> float:
        """Final validation loss."""


def summarize(
    cells: Sequence[EndedCell],
    *,
    score: str,
    level: float = CONFIDENCE_LEVEL,
    objective: Objective = VALIDATION_LOSS,
) -> tuple[ArmSummary, ...]:
    """Return a summary for each arm at each depth, ordered by depth.

    Args:
        cells: the cells of a comparison
        score: name of the primary score
        level: confidence level of the intervals
        objective: what cells are judged by
    """
    depths = sorted({each.cell.depth for each in cells})
    lines: list[ArmSummary] = []
    for depth in depths:
        at_depth = [each for each in cells if each.cell.depth == depth]
        arms = list(dict.fromkeys(each.cell.arm for each in at_depth))
        reference = next((arm for arm in arms if arm.wiring == REFERENCE_WIRING), arms[0])
        rate = _median_rate(each for each in at_depth if each.cell.arm == reference)
        summaries = [
            _summarize_arm(
                [each for each in at_depth if each.cell.arm == arm],
                score=score,
                level=level,
                reference_rate=rate,
                reference=reference.name,
            )
            for arm in arms
        ]
        lines += (replace(line, objective=objective) for line in _mark_best(summaries, level))
    return tuple(lines)


def _summarize_arm(
    cells: Sequence[EndedCell], *, score: str, level: float, reference_rate: float, reference: str
) -> ArmSummary:
    settings: dict[Setting, list[EndedCell]] = {}
    for each in cells:
        settings.setdefault(Setting(*each.cell.setting), []).append(each)
    best = _best_setting(settings)
    closest = None if best else _closest_setting(settings)
    is_finished = all(each.state != "waiting" for each in cells)
    trained = [each for each in settings[best] if each.state == "trained"] if best else []
    losses = {each.cell.seed: each.loss for each in trained}
    results = [each.end for each in trained if each.end is not None]
    scores = [result.scores[score] for result in results if score in result.scores]
    first = cells[0].cell
    return ArmSummary(
        arm=first.arm,
        depth=first.depth,
        states=dict(Counter(each.state for each in cells)),
        stable=_stable_ranges(settings),
        best=best,
        edge=_find_edge(best or closest, settings) if is_finished else "",
        whole=best is not None and len(trained) == len(settings[best]),
        losses=losses,
        loss=Estimate.from_values(list(losses.values()), level=level),
        score=Estimate.from_values(scores, level=level),
        leads=False,
        behind=None,
        speed=_median_rate(cells) / reference_rate,
        reference=reference,
        memory=_median(
            each.end.memory for each in cells if each.end is not None and each.end.memory
        ),
        unfinished=sum(each.state == "waiting" for each in settings[best]) if best else 0,
        closest=closest,
    )


def _best_setting(settings: dict[Setting, list[EndedCell]]) -> Setting | None:
    """Rank by the fraction of trained seeds first, so that one lucky seed does not win.

    Settings are ranked by the seeds that all of them have. Otherwise a setting that got more seeds
    later would compete with others that have few, perhaps lucky ones.
    """
    common = set.intersection(*({each.cell.seed for each in own} for own in settings.values()))

    def rank(setting: Setting) -> tuple[float, float]:
        own = [each for each in settings[setting] if not common or each.cell.seed in common]
        trained = [each.loss for each in own if each.state == "trained"]
        if not trained:
            return 0.0, math.inf
        return -len(trained) / len(own), math.fsum(trained) / len(trained)

    best = min(settings, key=rank)
    return best if any(each.state == "trained" for each in settings[best]) else None


def _closest_setting(settings: dict[Setting, list[EndedCell]]) -> Setting | None:
    losses = {
        setting: math.fsum(each.loss for each in cells) / len(cells)
        for setting, cells in settings.items()
        if all(each.state == "stuck" for each in cells)
    }
    return min(losses, key=lambda setting: losses[setting], default=None)


def _find_edge(best: Setting | None, settings: dict[Setting, list[EndedCell]]) -> str:
    """Return whether the best learning rate is the highest or the lowest with its warm-up."""
    if best is None:
        return ""
    rates = [setting.lr for setting in settings if setting.warmup == best.warmup]
    if len(rates) < 2:  # a single rate was chosen, not searched for
        return ""
    return {max(rates): "highest", min(rates): "lowest"}.get(best.lr, "")


def _stable_ranges(settings: dict[Setting, list[EndedCell]]) -> tuple[StableRange, ...]:
    ranges = []
    for warmup in dict.fromkeys(setting.warmup for setting in settings):
        states = {
            setting.lr: {each.state for each in cells}
            for setting, cells in settings.items()
            if setting.warmup == warmup
        }
        tried = tuple(lr for lr in sorted(states) if not states[lr] & UNKNOWN_STATES)
        trained = tuple(lr for lr in tried if states[lr] == {"trained"})
        diverged = tuple(lr for lr in tried if "diverged" in states[lr])
        num_waiting = sum("waiting" in each for each in states.values())
        ranges.append(StableRange(warmup, tried, trained, diverged, num_waiting))
    return tuple(ranges)


def _mark_best(lines: list[ArmSummary], level: float) -> list[ArmSummary]:
    """Mark the best arm of a depth and set the difference of each other arm to it."""
    known = [line for line in lines if line.loss is not None]
    if not known:
        return lines
    best = min(known, key=lambda line: (not line.whole, line.loss.mean if line.loss else math.inf))
    return [
        replace(line, leads=True)
        if line is best
        else replace(line, behind=paired_difference(line.losses, best.losses, level=level))
        for line in lines
    ]


def _median_rate(cells: Iterable[EndedCell]) -> float:
    rates = [each.end.rate for each in cells if each.end is not None]
    return _median(rate for rate in rates if math.isfinite(rate) and rate > 0)


def _median(values: Iterable[float]) -> float:
    values = list(values)
    return median(values) if values else math.nan
