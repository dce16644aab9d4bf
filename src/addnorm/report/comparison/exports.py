"""Exports of a comparison: charts as PNG on a white background, and tables as CSV."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.analysis.summary import ArmSummary
from addnorm.report.charts.base import CHART_CONFIG
from addnorm.report.comparison.arm_cards import build_arm_diagram
from addnorm.report.comparison.cell_selections import BEST_LABEL
from addnorm.report.comparison.page_charts import (
    ComparisonCharts,
    build_loss_charts,
    build_site_charts,
)
from addnorm.report.comparison.stability import (
    build_stability_map,
    plot_stability_map,
    warmup_label,
)
from addnorm.report.diagram.draw import render_png
from addnorm.report.diagram.svg import render_svg
from addnorm.report.html.chart_groups import ChartGroup, apply_scale, filter_spec
from addnorm.report.html.page import HOVER_ONLY_STYLE, Chart, vega_lite_version
from addnorm.report.output import write_bytes, write_error
from addnorm.report.rows_csv import LEADING_COLUMNS, write_csv
from addnorm.report.theme import get_page_colors

PNG_SCALE = 2.0
CHART_WIDTH_PIXELS = 460
CELL_COLUMNS = (
    *("cell", "arm", "wiring", "norm", "own_schedule", "depth", "warmup", "lr", "seed", "state"),
)
RESULT_COLUMNS = (
    *("ending", "why", "step", "loss", "tokens", "seconds", "rate", "memory", "parameters"),
)
"""Columns of `cells.csv` that are fields of the cell's result."""


def write_pngs(study: Study, folder: str | Path) -> list[Path]:
    """Write every chart as PNG and return the paths.

    For each depth these are the losses at the setting that separates the arms best and of each arm
    at its best setting, and the site metrics at the first of these settings, at the first and the
    last measured step.
    """
    folder, data = _make_folder(folder), ComparisonCharts.from_study(study)
    map_png = _chart_to_png(plot_stability_map(build_stability_map(study, data.arm_styles)))
    paths = [write_bytes(folder / "stability-map.png", map_png)]
    loss_keys = _selection_keys(data)
    site_keys = [each.key for each in data.contrasting_selections if each.key in loss_keys]
    for group, keys in ((build_loss_charts(data), loss_keys), (build_site_charts(data), site_keys)):
        if isinstance(group, ChartGroup):
            for name, chart in _iter_views(group, keys):
                paths.append(write_bytes(folder / f"{name}.png", _chart_to_png(chart)))
    for arm in study.spec.arms():
        diagram = build_arm_diagram(study, arm)
        if diagram is not None and not arm.own:
            path = folder / f"block-{_slugify(arm.name)}.png"
            paths.append(write_bytes(path, render_png(render_svg([diagram]))))
    return paths


def write_csvs(study: Study, folder: str | Path, *, escape_formulas: bool = False) -> list[Path]:
    """Write three tables and return their paths.

    `cells.csv` has a line for each cell, `summary.csv` one for each arm and depth, and `rows.csv`
    one for each measured value.

    Args:
        study: the comparison
        folder: output folder
        escape_formulas: whether texts that a spreadsheet would run get an apostrophe before them
    """
    folder = _make_folder(folder)
    write = partial(write_csv, escape_formulas=escape_formulas)
    scores = sorted({s for each in study.cells if each.end for s in each.end.scores})
    cells = (
        {
            **_cell_values(each),
            **({name: getattr(each.end, name) for name in RESULT_COLUMNS} if each.end else {}),
            **(each.end.scores if each.end else {}),
        }
        for each in study.cells
    )
    summary = [_summary_values(study, line) for line in study.summary]
    extra = sorted({n for each in study.cells for row in study.rows(each.cell) for n in row})
    columns = [
        *CELL_COLUMNS,
        *LEADING_COLUMNS,
        *(name for name in extra if name not in LEADING_COLUMNS),
    ]
    rows = ({**_cell_values(each), **row} for each in study.cells for row in study.rows(each.cell))
    return [
        write(folder / "cells.csv", [*CELL_COLUMNS, *RESULT_COLUMNS, *scores], cells),
        write(folder / "summary.csv", list(summary[0]), summary),
        write(folder / "rows.csv", columns, rows),
    ]


def _selection_keys(data: ComparisonCharts) -> list[str]:
    """Return the selections to export: the most contrasting and the best setting of each depth."""
    available = {key for group in data.selector.groups.values() for key in group}
    keys = [each.key for each in data.contrasting_selections]
    keys += [each.key for each in data.selections if each.label == BEST_LABEL]
    return [key for key in dict.fromkeys(keys) if key in available]


def _iter_views(group: ChartGroup, keys: Sequence[str]) -> Iterator[tuple[str, Chart]]:
    """Yield file name and chart of each view: a selection with values of all other selectors.

    Of the values of another selector (step, stack), the first and the last are exported.
    """
    views: list[dict[str, str]] = [{"show": key} for key in keys]
    for selector in group.selectors:
        if selector.field == "show":
            continue
        values = [value for options in selector.groups.values() for value in options]
        ends = dict.fromkeys([values[0], values[-1]])
        views = [view | {selector.field: value} for view in views for value in ends]
    for view in views:
        for chart in group.charts:
            spec = filter_spec(chart.spec, view)
            if not spec["datasets"]["curves"]:
                continue
            others = [f"{name}-{value}" for name, value in view.items() if name != "show"]
            name = "-".join(map(_slugify, [chart.title, view["show"], *others]))
            yield name, Chart(chart.title, apply_scale(spec, log=group.log and chart.log))


def _chart_to_png(chart: Chart) -> bytes:
    """Render a chart with a legend in the colors of the light theme."""
    import vl_convert  # large, and needed only here

    legend = CHART_CONFIG["legend"] | {"symbolOpacity": 1, "symbolStrokeWidth": 2.4, "columns": 6}
    spec = {**chart.spec, "config": CHART_CONFIG | {"background": "white", "legend": legend}}
    spec["params"] = [each for each in spec.get("params", ()) if "select" not in each]
    if "layer" in spec:
        spec["width"] = CHART_WIDTH_PIXELS
        spec["layer"] = [
            each for each in spec["layer"] if each["mark"].get("style") != HOVER_ONLY_STYLE
        ]
    text = json.dumps(spec)
    for name, color in get_page_colors("light").items():
        text = text.replace(f"var(--{name})", color)
    return bytes(vl_convert.vegalite_to_png(text, vl_version=vega_lite_version(), scale=PNG_SCALE))


def _cell_values(outcome: CellOutcome) -> dict[str, Any]:
    cell = outcome.cell
    values = (
        *(cell.name, cell.arm.name, cell.arm.wiring, cell.arm.norm, cell.arm.own, cell.depth),
        *("own" if cell.warmup is None else cell.warmup, cell.lr, cell.seed, outcome.state),
    )
    return dict(zip(CELL_COLUMNS, values, strict=True))


def _summary_values(study: Study, line: ArmSummary) -> dict[str, Any]:
    values: dict[str, Any] = {"arm": line.arm.name, "depth": line.depth}
    values |= {s: line.states.get(s, 0) for s in ("trained", "stuck", "diverged", "crashed")}
    values["stable"] = "; ".join(f"{warmup_label(e.warmup)}: {e.format()}" for e in line.stable)
    values["best"] = line.best.format() if line.best else ""
    for name, estimate in (
        ("loss", line.loss),
        (study.score.name, line.score),
        ("behind", line.behind),
    ):
        fields = asdict(estimate) if estimate is not None else {}
        values |= {
            f"{name}_mean": fields.get("mean"),
            f"{name}_half": fields.get("half"),
            f"{name}_count": fields.get("count"),
        }
    values["confidence_level"] = study.spec.confidence_level
    return values | {"speed": line.speed, "reference": line.reference, "memory": line.memory}


def _make_folder(folder: str | Path) -> Path:
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from None
    return folder


def _slugify(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text.lower()).strip("-")
