"""The page of a coordinate check: verdicts, slopes, and sizes over width and depth."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from addnorm.report.charts.lines import Line, plot_lines
from addnorm.report.html.page import Facts, Headline, Part, Section, Table, render_page, write_page
from addnorm.transfer.coordcheck import CoordinateCheck
from addnorm.transfer.slopes import Slope

PAGE_FILE = "report.html"
ABOUT = (
    "Root mean squares of activations and of their change since the start, of the same tokens. "
    "A slope of 0 is flat: the site changes as much in every model. Updates that grow with the "
    "size diverge at some size; updates that fall stop learning. Activations at the start may fall "
    "with the width for logits."
)


def write_coordcheck_page(
    check: CoordinateCheck, folder: Path, facts: Mapping[str, Any] | None = None
) -> Path:
    """Write `report.html` into a folder and return its path."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return write_page(Path(folder) / PAGE_FILE, render_coordcheck_page(check, facts or {}))


def render_coordcheck_page(check: CoordinateCheck, facts: Mapping[str, Any]) -> str:
    """Return the page as HTML.

    Args:
        check: the result
        facts: names and values that describe the models
    """
    sections = [Section("Result", [Headline(check.sentences())], ABOUT)]
    for axis in check.axes:
        sections.append(_axis_section(check, axis))
    sections.append(Section("Settings", [Facts("Settings", dict(facts) | {"steps": check.steps})]))
    title = "Coordinate check"
    return render_page(title, sections=sections, about=str(facts.get("model", "")))


def _axis_section(check: CoordinateCheck, axis: str) -> Section:
    slopes = {site: check.slope(site, axis=axis, measure=check.measure) for site in check.sites}
    head = ("site", "verdict", f"slope of {check.measure}s", "95 % interval")
    rows = [
        (
            site,
            check.verdict(site, axis=axis),
            _format(slopes[site]),
            _interval(slopes[site]),
            _format(check.slope(site, axis=axis, measure="activation")),
            _format(check.slope(site, axis=axis, measure="activation", step=0)),
        )
        for site in check.sites
    ]
    parts: list[Part] = [
        Table("Slopes", (*head, "of activations", "at the start"), rows, wide=True, stacked=True)
    ]
    for site in check.sites:
        for measure in ("update", "activation") if check.steps else ("activation",):
            parts.append(
                plot_lines(
                    _lines(check, site, axis, measure),
                    title=f"{site}: {measure}s",
                    x=axis,
                    y="root mean square",
                    series="step",
                    x_format="d",
                )
            )
    return Section(f"Over {axis}", parts)


def _lines(check: CoordinateCheck, site: str, axis: str, measure: str) -> list[Line]:
    """Return one line per step: means over seeds."""
    steps = sorted({row["step"] for row in check.rows if row["measure"] == measure})
    if len(steps) > 6:  # the first, the last and some between
        steps = sorted({steps[round(i * (len(steps) - 1) / 5)] for i in range(6)})
    lines: list[Line] = []
    for step in steps:
        values: dict[float, list[float]] = {}
        for size, value in check.points(site, axis=axis, measure=measure, step=step):
            values.setdefault(size, []).append(value)
        means = [(size, sum(each) / len(each)) for size, each in sorted(values.items())]
        lines.append((str(step), means))
    return lines


def _format(slope: Slope | None) -> str:
    return "" if slope is None else f"{slope.value:+.2f}"


def _interval(slope: Slope | None) -> str:
    is_known = slope is not None and math.isfinite(slope.low)
    return f"{slope.low:+.2f} to {slope.high:+.2f}" if slope and is_known else ""
