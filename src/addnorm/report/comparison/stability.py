"""The stability map: outcome of each arm by depth, warm-up and learning rate.

`build_stability_map` builds the part of the page, which the template renders as one table for each
arm. `plot_stability_map` converts it to a Vega-Lite chart for exported images.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from addnorm.comparison.analysis.arm_summary import OWN_SCHEDULE, warmup_label
from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.outcomes import STATES, VALIDATION_LOSS, Objective
from addnorm.report.charts.base import CHART_CONFIG
from addnorm.report.html.page import Chart
from addnorm.report.theme import OUTCOME_MEANINGS, OUTCOME_SYMBOLS, ArmStyle

CELL_WIDTH_PIXELS = 54
"""Width of a cell of the exported map."""
MAX_PANEL_COLUMNS = 5
"""Maximum number of panels side by side in the exported map."""


@dataclass(frozen=True)
class StabilityCell:
    """The outcomes of all seeds of one arm at one depth and setting."""

    states: tuple[tuple[str, int], ...]
    """Number of seeds by state, in the order of `STATES`."""
    loss: float
    """Mean of the finite final values, by default validation losses; NaN if there is none."""
    seeds_text: str
    """Outcome, loss and reason of each seed, for the tooltip."""

    @classmethod
    def from_cells(
        cls, cells: Sequence[CellOutcome], objective: Objective = VALIDATION_LOSS
    ) -> "StabilityCell":
        """Summarize the cells of all seeds."""
        counts = Counter(each.state for each in cells)
        states = tuple((state, counts[state]) for state in STATES if counts[state])
        losses = [objective.to_loss(each.loss) for each in cells if math.isfinite(each.loss)]
        seeds = "; ".join(
            f"seed {each.cell.seed} {_describe_outcome(each, objective)}" for each in cells
        )
        return cls(states, math.fsum(losses) / len(losses) if losses else math.nan, seeds)

    @property
    def outcome_text(self) -> str:
        """The outcomes for screen readers.

        >>> StabilityCell((("trained", 1), ("diverged", 1)), 0.5, "").outcome_text
        '1 of 2 trained, 1 of 2 diverged'
        """
        total = sum(count for _, count in self.states)
        if len(self.states) == 1:
            return self.states[0][0]
        return ", ".join(f"{count} of {total} {state}" for state, count in self.states)

    @property
    def loss_text(self) -> str:
        """The loss as shown below the cell; empty if there is none."""
        return f"{self.loss:.2f}" if math.isfinite(self.loss) else ""


@dataclass(frozen=True)
class Panel:
    """The map of one arm: a row for each warm-up and depth, a column for each learning rate."""

    arm: ArmStyle
    lrs: tuple[float, ...]
    rows: Sequence[tuple[str, Sequence[tuple[int, Sequence[StabilityCell | None]]]]]
    """For each warm-up label: the depths with their cells; None where a setting was not run."""


@dataclass(frozen=True)
class StabilityMap:
    """The panels of all arms, and the legend."""

    panels: Sequence[Panel]
    states: Sequence[tuple[str, str, str]]
    """Name, symbol and meaning of every outcome that occurs."""
    mixed: bool
    """Whether the seeds of any cell have different outcomes."""
    metric: str = "validation loss"
    """What the number below a cell is."""
    kind: str = field(default="stability_map", init=False)


@dataclass(frozen=True)
class OutcomeCounts:
    """Number of cells by outcome, as colored chips."""

    states: dict[str, int]

    def __html__(self) -> str:
        chips = [
            f'<span class="chip is-{state}" title="{count} {state}">{OUTCOME_SYMBOLS[state]} '
            f'{count}<span class="visually-hidden"> {state}</span></span>'
            for state in STATES
            if (count := self.states.get(state))
        ]
        return f'<span class="chips">{" ".join(chips)}</span>'


def build_stability_map(study: Study, styles: dict[str, ArmStyle]) -> StabilityMap:
    """Return the map of a comparison, with a panel for each style."""
    groups: dict[tuple[str, int | None, int, float], list[CellOutcome]] = {}
    objective = study.task.objective
    for each in study.cells:
        cell = each.cell
        groups.setdefault((cell.arm.name, cell.warmup, cell.depth, cell.lr), []).append(each)
    lrs = tuple(sorted({lr for *_, lr in groups}))
    panels = []
    for name, style in styles.items():
        rows = []
        for warmup in dict.fromkeys(key[1] for key in groups if key[0] == name):
            depths = sorted({key[2] for key in groups if key[:2] == (name, warmup)})
            cells = [
                (
                    depth,
                    [_make_cell(groups.get((name, warmup, depth, lr)), objective) for lr in lrs],
                )
                for depth in depths
            ]
            rows.append((warmup_label(warmup), cells))
        panels.append(Panel(style, lrs, rows))
    present = {each.state for each in study.cells}
    legend = [(s, OUTCOME_SYMBOLS[s], OUTCOME_MEANINGS[s]) for s in STATES if s in present]
    is_mixed = any(len({each.state for each in cells}) > 1 for cells in groups.values())
    return StabilityMap(panels, legend, is_mixed, objective.label)


def plot_stability_map(outcome_map: StabilityMap) -> Chart:
    """Return the map as a chart with a panel for each arm and warm-up.

    The panels are a single wrapped facet. A facet of rows by columns would misplace panels where a
    combination of arm and warm-up does not exist.
    """
    values = _map_rows(outcome_map)
    lrs = [f"{lr:g}" for lr in outcome_map.panels[0].lrs]
    depths = sorted({value["depth"] for value in values})
    states = [state for state, _, _ in outcome_map.states]
    ticks = [column + 0.5 for column in range(len(lrs))]
    x = {
        "field": "start", "type": "quantitative", "title": "learning rate",
        "scale": {"domain": [0, len(lrs)], "nice": False},
        "axis": {"values": ticks, "labelExpr": f"{lrs}[floor(datum.value)]", "grid": False,
                 "ticks": False, "domain": False, "labelFlush": False},
    }  # fmt: skip
    y = {
        "field": "depth", "type": "ordinal", "sort": depths, "title": "depth",
        "axis": {"grid": False, "ticks": False, "domain": False},
    }  # fmt: skip
    legend = {"title": None, "symbolType": "square", "symbolStrokeWidth": 0}
    rect = {
        "mark": {"type": "rect", "stroke": "var(--paper)", "strokeWidth": 2},
        "encoding": {
            "x": x, "x2": {"field": "end"}, "y": y,
            "color": {"field": "state", "type": "nominal", "legend": legend,
                      "scale": {"domain": states, "range": [f"var(--{s})" for s in states]}},
        },
    }  # fmt: skip
    text = {
        "mark": {"type": "text", "fontSize": 12, "fontWeight": 600},
        "encoding": {
            "x": {**x, "field": "middle"}, "y": y, "text": {"field": "label", "type": "nominal"},
            "color": {"field": "text_color", "type": "nominal", "scale": None},
        },
    }  # fmt: skip
    facet = {
        "field": "panel", "type": "nominal", "title": None,
        "sort": list(dict.fromkeys(value["panel"] for value in values)),
        "header": {"labelFontSize": 12, "labelFontWeight": 600},
    }  # fmt: skip
    width = CELL_WIDTH_PIXELS * len(lrs)
    spec = {
        "data": {"name": "values"}, "datasets": {"values": values}, "facet": facet,
        "spec": {"width": width, "height": {"step": 34}, "layer": [rect, text]},
        "config": CHART_CONFIG, "columns": min(len(outcome_map.panels), MAX_PANEL_COLUMNS),
    }  # fmt: skip
    return Chart("Stability map", spec)


def _map_rows(outcome_map: StabilityMap) -> list[dict[str, Any]]:
    """Return the rectangles of all panels, ordered by warm-up and then by arm."""
    rows: list[dict[str, Any]] = []
    labels = list(dict.fromkeys(label for panel in outcome_map.panels for label, _ in panel.rows))
    for label in labels:
        for panel in outcome_map.panels:
            title = panel.arm.name + (f", {label}" if label != OWN_SCHEDULE else "")
            for depth, cells in dict(panel.rows).get(label, ()):
                for column, cell in enumerate(cells):
                    if cell is not None:
                        rows += _segment_rows(title, depth, column, cell)
    return rows


def _segment_rows(panel: str, depth: int, column: int, cell: StabilityCell) -> list[dict[str, Any]]:
    """Return a rectangle for each state of a cell, as wide as its fraction of the seeds."""
    total = sum(count for _, count in cell.states)
    rows, start = [], float(column)
    for state, count in cell.states:
        end, symbol = start + count / total, OUTCOME_SYMBOLS[state]
        rows.append(
            {"panel": panel, "depth": depth, "state": state, "start": start, "end": end,
             "middle": (start + end) / 2, "text_color": f"var(--on-{state})",
             "label": symbol if len(cell.states) == 1 else f"{symbol}{count}"}
        )  # fmt: skip
        start = end
    return rows


def _make_cell(cells: Sequence[CellOutcome] | None, objective: Objective) -> StabilityCell | None:
    return StabilityCell.from_cells(cells, objective) if cells else None


def _describe_outcome(outcome: CellOutcome, objective: Objective) -> str:
    value = objective.to_loss(outcome.loss)
    loss = f", {objective.label} {value:.3f}" if math.isfinite(value) else ""
    why = f" ({outcome.end.why})" if outcome.end is not None and outcome.end.why else ""
    return f"{outcome.state}{loss}{why}"
