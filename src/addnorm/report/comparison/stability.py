"""The stability map: what became of each arm, by depth, warm-up and learning rate."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.outcomes import STATES
from addnorm.report.charts.base import CHART_CONFIG
from addnorm.report.html.page import Chart
from addnorm.report.theme import OUTCOME_MEANINGS, OUTCOME_SYMBOLS, ArmStyle

OWN_SCHEDULE = "own schedule"
CELL_WIDTH_PIXELS = 54
"""Width of a square of the exported map."""
MAX_PANEL_COLUMNS = 5
"""Panels that stand side by side there."""


@dataclass(frozen=True)
class StabilityCell:
    """The seeds of one arm at one depth and setting."""

    states: tuple[tuple[str, int], ...]
    """How many seeds are what, in the order of STATES."""
    loss: float
    """Mean final validation loss of those that have one; NaN if none."""
    seeds_text: str
    """All of it in words."""

    @classmethod
    def from_cells(cls, cells: Sequence[CellOutcome]) -> "StabilityCell":
        """Out of the cells of all seeds."""
        counts = Counter(each.state for each in cells)
        states = tuple((state, counts[state]) for state in STATES if counts[state])
        losses = [each.loss for each in cells if math.isfinite(each.loss)]
        seeds = "; ".join(f"seed {each.cell.seed} {_describe_outcome(each)}" for each in cells)
        return cls(states, math.fsum(losses) / len(losses) if losses else math.nan, seeds)

    @property
    def outcome_text(self) -> str:
        """For whoever does not see the colours.

        >>> Square((("trained", 1), ("diverged", 1)), 0.5, "").words
        '1 of 2 trained, 1 of 2 diverged'
        """
        total = sum(count for _, count in self.states)
        if len(self.states) == 1:
            return self.states[0][0]
        return ", ".join(f"{count} of {total} {state}" for state, count in self.states)

    @property
    def loss_text(self) -> str:
        """The loss as it stands in the square."""
        return f"{self.loss:.2f}" if math.isfinite(self.loss) else ""


@dataclass(frozen=True)
class Panel:
    """One arm: a row for each warm-up and depth, a column for each learning rate."""

    arm: ArmStyle
    lrs: tuple[float, ...]
    rows: Sequence[tuple[str, Sequence[tuple[int, Sequence[StabilityCell | None]]]]]
    """For each warm-up, in words: depths with their squares."""


@dataclass(frozen=True)
class StabilityMap:
    """The panels of all arms side by side, and what the signs mean."""

    panels: Sequence[Panel]
    states: Sequence[tuple[str, str, str]]
    """Word, sign and meaning of every outcome that occurs."""
    mixed: bool
    """Whether seeds of one square ended differently anywhere."""
    kind: str = field(default="map", init=False)


@dataclass(frozen=True)
class OutcomeCounts:
    """Numbers of cells by outcome, in the colours of the map."""

    states: dict[str, int]

    def __html__(self) -> str:
        """Sign and number on the ground of the outcome; the word for who hears the page."""
        made = [
            f'<span class="chip is-{state}" title="{self.states[state]} {state}">{OUTCOME_SYMBOLS[state]} '
            f'{self.states[state]}<span class="hidden"> {state}</span></span>'
            for state in STATES
            if self.states.get(state)
        ]
        return f'<span class="chips">{" ".join(made)}</span>'


def stability_map(study: Study, styles: dict[str, ArmStyle]) -> StabilityMap:
    """The map of a comparison."""
    groups: dict[tuple[str, int | None, int, float], list[CellOutcome]] = {}
    for each in study.cells:
        cell = each.cell
        groups.setdefault((cell.arm.name, cell.warmup, cell.depth, cell.lr), []).append(each)
    lrs = tuple(sorted({lr for *_, lr in groups}))
    panels = []
    for name, look in styles.items():
        rows = []
        for warmup in dict.fromkeys(key[1] for key in groups if key[0] == name):
            depths = sorted({key[2] for key in groups if key[:2] == (name, warmup)})
            squares = [
                (depth, [_make_cell(groups.get((name, warmup, depth, lr))) for lr in lrs])
                for depth in depths
            ]
            rows.append((warmup_label(warmup), squares))
        panels.append(Panel(look, lrs, rows))
    seen = {each.state for each in study.cells}
    mixed = any(len({each.state for each in cells}) > 1 for cells in groups.values())
    return StabilityMap(
        panels, [(s, OUTCOME_SYMBOLS[s], OUTCOME_MEANINGS[s]) for s in STATES if s in seen], mixed
    )


def warmup_label(warmup: int | None) -> str:
    """A warm-up in words."""
    if warmup is None:
        return OWN_SCHEDULE
    return f"warm-up {warmup}" if warmup else "no warm-up"


def map_chart(outcome_map: StabilityMap) -> Chart:
    """The map as a chart, for papers: a panel for each arm and warm-up.

    One facet, not rows by columns: Vega moves panels where a combination is missing.
    """
    values: list[dict[str, Any]] = []
    warmups = list(dict.fromkeys(told for panel in outcome_map.panels for told, _ in panel.rows))
    for warmup in warmups:
        for panel in outcome_map.panels:
            for depth, squares in dict(panel.rows).get(warmup, ()):
                for place, square in enumerate(squares):
                    if square is not None:
                        named = panel.arm.name + (f", {warmup}" if warmup != OWN_SCHEDULE else "")
                        values += _segment_rows(named, depth, place, square)
    lrs = [f"{lr:g}" for lr in outcome_map.panels[0].lrs]
    depths = sorted({value["depth"] for value in values})
    states = [state for state, _, _ in outcome_map.states]
    ticks = [place + 0.5 for place in range(len(lrs))]
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
    ground = [f"var(--{state})" for state in states]
    ink = [f"var(--on-{state})" for state in states]
    legend = {"title": None, "symbolType": "square", "symbolStrokeWidth": 0}
    rect = {
        "mark": {"type": "rect", "stroke": "var(--paper)", "strokeWidth": 2},
        "encoding": {
            "x": x, "x2": {"field": "end"}, "y": y,
            "color": {"field": "state", "type": "nominal", "legend": legend,
                      "scale": {"domain": states, "range": ground}},
        },
    }  # fmt: skip
    text = {
        "mark": {"type": "text", "fontSize": 12, "fontWeight": 600},
        "encoding": {
            "x": {**x, "field": "middle"}, "y": y, "text": {"field": "told", "type": "nominal"},
            "color": {"field": "ink", "type": "nominal", "scale": None},
        },
    }  # fmt: skip
    colours = dict(zip(states, ink, strict=True))
    values = [value | {"ink": colours[value["state"]]} for value in values]
    panels = list(dict.fromkeys(value["panel"] for value in values))
    facet = {
        "field": "panel", "type": "nominal", "sort": panels, "title": None,
        "header": {"labelFontSize": 12, "labelFontWeight": 600},
    }  # fmt: skip
    spec = {
        "data": {"name": "values"}, "datasets": {"values": values}, "facet": facet,
        "spec": {"width": CELL_WIDTH_PIXELS * len(lrs), "height": {"step": 34}, "layer": [rect, text]},
        "config": CHART_CONFIG, "columns": min(len(outcome_map.panels), MAX_PANEL_COLUMNS),
    }  # fmt: skip
    return Chart("Stability map", spec)


def _segment_rows(panel: str, depth: int, column: int, cell: StabilityCell) -> list[dict[str, Any]]:
    total = sum(count for _, count in cell.states)
    made, start = [], float(column)
    for state, count in cell.states:
        end = start + count / total
        told = (
            OUTCOME_SYMBOLS[state] if len(cell.states) == 1 else f"{OUTCOME_SYMBOLS[state]}{count}"
        )
        made.append(
            {"panel": panel, "depth": depth, "state": state, "start": start,
             "end": end, "middle": (start + end) / 2, "told": told}
        )  # fmt: skip
        start = end
    return made


def _make_cell(cells: Sequence[CellOutcome] | None) -> StabilityCell | None:
    return StabilityCell.from_cells(cells) if cells else None


def _describe_outcome(outcome: CellOutcome) -> str:
    loss = f", validation loss {outcome.loss:.3f}" if math.isfinite(outcome.loss) else ""
    why = f" ({outcome.end.why})" if outcome.end is not None and outcome.end.why else ""
    return f"{outcome.state}{loss}{why}"
