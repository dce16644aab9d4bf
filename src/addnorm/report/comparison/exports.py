"""Charts and rows of a comparison for papers: PNG on white, and tables as CSV."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from addnorm.comparison.analysis.study import Judged, Study
from addnorm.comparison.analysis.summary import Line
from addnorm.core.errors import UserError
from addnorm.core.files import replacing
from addnorm.report.charts.base import THEME
from addnorm.report.comparison.arms import diagram
from addnorm.report.comparison.boards import Gathered, loss_board, site_board
from addnorm.report.comparison.stability import map_chart, stability_map, told_warmup
from addnorm.report.diagram.draw import png
from addnorm.report.diagram.svg import svg
from addnorm.report.html.chart_groups import Board, on_scale, picked
from addnorm.report.html.page import UNSEEN, Chart, colours_of, vega_lite_version

SCALE = 2.0
WIDTH = 460
CELL = ("cell", "arm", "wiring", "norm", "own_schedule", "depth", "warmup", "lr", "seed", "state")
FIRST = ("step", "name", "value", "split", "stack", "site", "layer", "kind")
"""Columns of rows that come first; others follow as they are found."""


def write_pngs(study: Study, folder: str | Path) -> list[Path]:
    """Every chart as PNG, twice as large as on the page, on white.

    At each depth: curves of all arms at the most telling setting and of each arm at its best; sites
    at the most telling setting, at the first and the last measured step.
    """
    folder, got = _folder(folder), Gathered.of(study)
    made = [_write(folder / "stability-map.png", _png(map_chart(stability_map(study, got.looks))))]
    keys = _selections(got)
    telling = [each.key for each in got.telling if each.key in keys]
    for board, wanted in ((loss_board(got), keys), (site_board(got), telling)):
        if isinstance(board, Board):
            for name, chart, spec in _views(board, wanted):
                drawn = Chart(chart.title, spec)
                made.append(_write(folder / f"{name}.png", _png(drawn)))
    for arm in study.spec.arms():
        drawn_block = diagram(study, arm)
        if drawn_block is not None and not arm.own:
            name = f"block-{_slug(arm.name)}.png"
            made.append(_write(folder / name, png(svg([drawn_block]))))
    return made


def write_csvs(study: Study, folder: str | Path) -> list[Path]:
    """`cells.csv`, a line for each cell; `summary.csv`; `rows.csv`, all that was measured."""
    folder = _folder(folder)
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
    columns = [*CELL, *FIRST, *(name for name in extra if name not in FIRST)]
    rows = ({**_cell(each), **row} for each in study.cells for row in study.rows(each.cell))
    return [
        _table(folder / "cells.csv", [*CELL, *ends, *scores], cells),
        _table(folder / "summary.csv", list(summary[0]), summary),
        _table(folder / "rows.csv", columns, rows),
    ]


def _selections(got: Gathered) -> list[str]:
    """What is worth a picture: the most telling setting at each depth, each arm at its best."""
    known = {key for group in got.chosen.groups.values() for key in group}
    wanted = [each.key for each in got.telling]
    wanted += [each.key for each in got.selections if each.told.startswith("each arm")]
    return [key for key in dict.fromkeys(wanted) if key in known]


def _views(board: Board, keys: Sequence[str]) -> Iterator[tuple[str, Chart, dict[str, Any]]]:
    """Every chart of a board at every selection; sites at the first and the last step."""
    others = [choice for choice in board.choices if choice.field != "show"]
    chosen: list[dict[str, str]] = [{"show": key} for key in keys]
    for choice in others:
        values = [value for group in choice.groups.values() for value in group]
        values = [values[0], values[-1]] if len(values) > 1 else values
        chosen = [each | {choice.field: value} for each in chosen for value in values]
    for each in chosen:
        for chart in board.charts:
            spec = picked(chart.spec, each)
            if not spec["datasets"]["curves"]:
                continue
            told = [each["show"], *(f"{name}-{each[name]}" for name in each if name != "show")]
            name = "-".join([_slug(chart.title), *map(_slug, told)])
            yield name, chart, on_scale(spec, log=board.log and chart.log)


def _png(chart: Chart) -> bytes:
    """With a legend, in the colours of the light theme."""
    import vl_convert  # a big library, wanted only here

    legend = THEME["legend"] | {"symbolOpacity": 1, "symbolStrokeWidth": 2.4, "columns": 6}
    spec = {**chart.spec, "config": THEME | {"background": "white", "legend": legend}}
    spec["params"] = [each for each in spec.get("params", ()) if "select" not in each]
    if "layer" in spec:
        spec["width"] = WIDTH
        spec["layer"] = [each for each in spec["layer"] if each["mark"].get("style") != UNSEEN]
    text = json.dumps(spec)
    for name, colour in colours_of("light").items():
        text = text.replace(f"var(--{name})", colour)
    return bytes(vl_convert.vegalite_to_png(text, vl_version=vega_lite_version(), scale=SCALE))


def _cell(each: Judged) -> dict[str, Any]:
    cell = each.cell
    values = (
        *(cell.name, cell.arm.name, cell.arm.wiring, cell.arm.norm, cell.arm.own, cell.depth),
        *("own" if cell.warmup is None else cell.warmup, cell.lr, cell.seed, each.state),
    )
    return dict(zip(CELL, values, strict=True))


def _summary(study: Study, line: Line) -> dict[str, Any]:
    plain: dict[str, Any] = {"arm": line.arm.name, "depth": line.depth}
    plain |= {s: line.states.get(s, 0) for s in ("trained", "stuck", "diverged", "crashed")}
    plain["stable"] = "; ".join(f"{told_warmup(e.warmup)}: {e.told()}" for e in line.stable)
    plain["best"] = line.best.told() if line.best else ""
    for name, estimate in (("loss", line.loss), (study.score, line.score), ("behind", line.behind)):
        found = asdict(estimate) if estimate is not None else {}
        plain |= {
            f"{name}_mean": found.get("mean"),
            f"{name}_half_95": found.get("half"),
            f"{name}_count": found.get("count"),
        }
    return plain | {"speed": line.speed, "reference": line.reference, "memory": line.memory}


def _table(path: Path, columns: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> Path:
    """Lines as RFC 4180 has them; nothing where a number is not known."""
    try:
        with (
            replacing(path) as name,
            name.open("w", encoding="utf-8", errors="replace", newline="") as file,
        ):
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows({key: _plain(value) for key, value in line.items()} for line in lines)
    except OSError as problem:
        raise _cannot(path, problem) from None
    return path


def _plain(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value


def _write(path: Path, content: bytes) -> Path:
    try:
        with replacing(path) as name:
            name.write_bytes(content)
    except OSError as problem:
        raise _cannot(path, problem) from None
    return path


def _folder(folder: str | Path) -> Path:
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise _cannot(folder, problem) from None
    return folder


def _cannot(path: Path, problem: OSError) -> UserError:
    words = problem.strerror or problem
    return UserError(f"cannot write {str(path)!r}: {words}; choose another place")


def _slug(text: str) -> str:
    return re.sub(r"[^\w.]+", "-", text.lower()).strip("-")
