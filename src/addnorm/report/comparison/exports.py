"""Exports of a comparison: charts as PNG, SVG or PDF on a white background, tables as CSV."""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from addnorm.comparison.analysis.frames import (
    cell_records,
    cell_settings,
    row_records,
    summary_records,
)
from addnorm.comparison.analysis.study import Study
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


def write_pngs(study: Study, folder: str | Path) -> list[Path]:
    """Write every chart as PNG and return the paths; see `write_figures`."""
    return write_figures(study, folder, kind="png")


def write_figures(
    study: Study, folder: str | Path, *, kind: Literal["png", "svg", "pdf"]
) -> list[Path]:
    """Write every chart as PNG, SVG or PDF and return the paths.

    For each depth these are the losses at the setting that separates the arms best and of each arm
    at its best setting, and the site metrics at the first of these settings, at the first and the
    last measured step.
    """
    folder, data = _make_folder(folder), ComparisonCharts.from_study(study)
    outcomes = plot_stability_map(build_stability_map(study, data.arm_styles))
    paths = [write_bytes(folder / f"stability-map.{kind}", _render_chart(outcomes, kind))]
    loss_keys = _selection_keys(data)
    site_keys = [each.key for each in data.contrasting_selections if each.key in loss_keys]
    for group, keys in ((build_loss_charts(data), loss_keys), (build_site_charts(data), site_keys)):
        if isinstance(group, ChartGroup):
            for name, chart in _iter_views(group, keys):
                paths.append(write_bytes(folder / f"{name}.{kind}", _render_chart(chart, kind)))
    for arm in study.spec.arms():
        diagram = build_arm_diagram(study, arm)
        if diagram is not None and not arm.own:
            path = folder / f"block-{_slugify(arm.name)}.{kind}"
            paths.append(write_bytes(path, _convert_svg(render_svg([diagram]), kind)))
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
    cells, summary = cell_records(study), summary_records(study)
    settings = list(dict.fromkeys(name for each in study.cells for name in cell_settings(each)))
    finals = dict.fromkeys(name for record in cells for name in record if name not in settings)
    scores = sorted({s for each in study.cells if each.end for s in each.end.scores})
    finals_first = [*(name for name in finals if name not in scores), *scores]
    extra = sorted({n for each in study.cells for row in study.rows(each.cell) for n in row})
    columns = [
        *settings,
        *LEADING_COLUMNS,
        *(name for name in extra if name not in LEADING_COLUMNS),
    ]
    return [
        write(folder / "cells.csv", [*settings, *finals_first], cells),
        write(folder / "summary.csv", list(summary[0]), summary),
        write(folder / "rows.csv", columns, row_records(study)),
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


def _convert_svg(svg: str, kind: str) -> bytes:
    import vl_convert  # large, and needed only here

    if kind == "svg":
        return svg.encode()
    return render_png(svg) if kind == "png" else bytes(vl_convert.svg_to_pdf(svg))


def _render_chart(chart: Chart, kind: str) -> bytes:
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
    version = vega_lite_version()
    if kind == "svg":
        return vl_convert.vegalite_to_svg(text, vl_version=version).encode()
    if kind == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(text, vl_version=version))
    return bytes(vl_convert.vegalite_to_png(text, vl_version=version, scale=PNG_SCALE))


def _make_folder(folder: str | Path) -> Path:
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(folder, error) from None
    return folder


def _slugify(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text.lower()).strip("-")
