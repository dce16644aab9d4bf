"""Charts and rows of a comparison for papers: PNG on white, and tables as CSV."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.analysis.summary import ArmSummary
from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write
from addnorm.report.charts.base import CHART_CONFIG
from addnorm.report.comparison.arms import build_arm_diagram
from addnorm.report.comparison.boards import ComparisonCharts, build_loss_charts, build_site_charts
from addnorm.report.comparison.stability import map_chart, stability_map, warmup_label
from addnorm.report.diagram.draw import render_png
from addnorm.report.diagram.svg import render_svg
from addnorm.report.html.chart_groups import ChartGroup, apply_scale, filter_spec
from addnorm.report.html.page import HOVER_ONLY_STYLE, Chart, page_colors, vega_lite_version

PNG_SCALE = 2.0
CHART_WIDTH_PIXELS = 460
CELL_COLUMNS = (
    "cell",
    "arm",
    "wiring",
    "norm",
    "own_schedule",
    "depth",
    "warmup",
    "lr",
    "seed",
    "state",
)
LEADING_COLUMNS = ("step", "name", "value", "split", "stack", "site", "layer", "kind")
"""Columns of rows that come first; others follow as they are found."""


def write_pngs(study: Study, folder: str | Path) -> list[Path]:
    """Every chart as PNG, twice as large as on the page, on white.

    At each depth: curves of all arms at the most telling setting and of each arm at its best; sites
    at the most telling setting, at the first and the last measured step.
    """
    folder, got = _make_folder(folder), ComparisonCharts.from_study(study)
    made = [
        _write_bytes(
            folder / "stability-map.png",
            _chart_to_png(map_chart(stability_map(study, got.arm_styles))),
        )
    ]
    keys = _selection_keys(got)
    telling = [each.key for each in got.contrasting_selections if each.key in keys]
    for board, wanted in ((build_loss_charts(got), keys), (build_site_charts(got), telling)):
        if isinstance(board, ChartGroup):
            for name, chart, spec in _iter_views(board, wanted):
                drawn = Chart(chart.title, spec)
                made.append(_write_bytes(folder / f"{name}.png", _chart_to_png(drawn)))
    for arm in study.spec.arms():
        drawn_block = build_arm_diagram(study, arm)
        if drawn_block is not None and not arm.own:
            name = f"block-{_slugify(arm.name)}.png"
            made.append(_write_bytes(folder / name, render_png(render_svg([drawn_block]))))
    return made


def write_csvs(study: Study, folder: str | Path) -> list[Path]:
    """`cells.csv`, a line for each cell; `summary.csv`; `rows.csv`, all that was measured."""
    folder = _make_folder(folder)
    scores = sorted({s for each in study.cells if each.end for s in each.end.scores})
    ends = ("ending", "why", "step", "loss", "tokens", "seconds", "rate", "memory", "parameters")
    cells = (
        {
            **_cell(each),
            **({name: getattr(each.end, name) for name in ends} if each.end else {}),
            **(each.end.scores if each.end else {}),
        }
        for each in study.cells
    )
    summary = [_summary(study, line) for line in study.summary]
    extra = sorted({n for each in study.cells for row in study.rows(each.cell) for n in row})
    columns = [
        *CELL_COLUMNS,
        *LEADING_COLUMNS,
        *(name for name in extra if name not in LEADING_COLUMNS),
    ]
    rows = ({**_cell(each), **row} for each in study.cells for row in study.rows(each.cell))
    return [
        _write_csv(folder / "cells.csv", [*CELL_COLUMNS, *ends, *scores], cells),
        _write_csv(folder / "summary.csv", list(summary[0]), summary),
        _write_csv(folder / "rows.csv", columns, rows),
    ]


def _selection_keys(comparison_charts: ComparisonCharts) -> list[str]:
    """What is worth a picture: the most telling setting at each depth, each arm at its best."""
    known = {key for group in comparison_charts.selector.groups.values() for key in group}
    wanted = [each.key for each in comparison_charts.contrasting_selections]
    wanted += [
        each.key for each in comparison_charts.selections if each.label.startswith("each arm")
    ]
    return [key for key in dict.fromkeys(wanted) if key in known]


def _iter_views(
    chart_group: ChartGroup, keys: Sequence[str]
) -> Iterator[tuple[str, Chart, dict[str, Any]]]:
    """Every chart of a board at every selection; sites at the first and the last step."""
    others = [choice for choice in chart_group.choices if choice.field != "show"]
    chosen: list[dict[str, str]] = [{"show": key} for key in keys]
    for choice in others:
        values = [value for group in choice.groups.values() for value in group]
        values = [values[0], values[-1]] if len(values) > 1 else values
        chosen = [each | {choice.field: value} for each in chosen for value in values]
    for each in chosen:
        for chart in chart_group.charts:
            spec = filter_spec(chart.spec, each)
            if not spec["datasets"]["curves"]:
                continue
            told = [each["show"], *(f"{name}-{each[name]}" for name in each if name != "show")]
            name = "-".join([_slugify(chart.title), *map(_slugify, told)])
            yield name, chart, apply_scale(spec, log=chart_group.log and chart.log)


def _chart_to_png(chart: Chart) -> bytes:
    """With a legend, in the colours of the light theme."""
    import vl_convert  # a big library, wanted only here

    legend = CHART_CONFIG["legend"] | {"symbolOpacity": 1, "symbolStrokeWidth": 2.4, "columns": 6}
    spec = {**chart.spec, "config": CHART_CONFIG | {"background": "white", "legend": legend}}
    spec["params"] = [each for each in spec.get("params", ()) if "select" not in each]
    if "layer" in spec:
        spec["width"] = CHART_WIDTH_PIXELS
        spec["layer"] = [
            each for each in spec["layer"] if each["mark"].get("style") != HOVER_ONLY_STYLE
        ]
    text = json.dumps(spec)
    for name, colour in page_colors("light").items():
        text = text.replace(f"var(--{name})", colour)
    return bytes(vl_convert.vegalite_to_png(text, vl_version=vega_lite_version(), scale=PNG_SCALE))


def _cell(outcome: CellOutcome) -> dict[str, Any]:
    cell = outcome.cell
    values = (
        *(cell.name, cell.arm.name, cell.arm.wiring, cell.arm.norm, cell.arm.own, cell.depth),
        *("own" if cell.warmup is None else cell.warmup, cell.lr, cell.seed, outcome.state),
    )
    return dict(zip(CELL_COLUMNS, values, strict=True))


def _summary(study: Study, line: ArmSummary) -> dict[str, Any]:
    plain: dict[str, Any] = {"arm": line.arm.name, "depth": line.depth}
    plain |= {s: line.states.get(s, 0) for s in ("trained", "stuck", "diverged", "crashed")}
    plain["stable"] = "; ".join(f"{warmup_label(e.warmup)}: {e.format()}" for e in line.stable)
    plain["best"] = line.best.format() if line.best else ""
    for name, estimate in (("loss", line.loss), (study.score, line.score), ("behind", line.behind)):
        found = asdict(estimate) if estimate is not None else {}
        plain |= {
            f"{name}_mean": found.get("mean"),
            f"{name}_half_95": found.get("half"),
            f"{name}_count": found.get("count"),
        }
    return plain | {"speed": line.speed, "reference": line.reference, "memory": line.memory}


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Path:
    """Lines as RFC 4180 has them; nothing where a number is not known."""
    try:
        with (
            atomic_write(path) as name,
            name.open("w", encoding="utf-8", errors="replace", newline="") as file,
        ):
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(
                {key: _blank_nan(value) for key, value in line.items()} for line in rows
            )
    except OSError as problem:
        raise _write_error(path, problem) from None
    return path


def _blank_nan(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value


def _write_bytes(path: Path, content: bytes) -> Path:
    try:
        with atomic_write(path) as name:
            name.write_bytes(content)
    except OSError as problem:
        raise _write_error(path, problem) from None
    return path


def _make_folder(folder: str | Path) -> Path:
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise _write_error(folder, problem) from None
    return folder


def _write_error(path: Path, problem: OSError) -> UserError:
    words = problem.strerror or problem
    return UserError(f"cannot write {str(path)!r}: {words}; choose another place")


def _slugify(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text.lower()).strip("-")
