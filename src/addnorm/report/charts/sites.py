"""Charts of rows measured at sites: over steps, over depth, and as a heat map.

A site is the position of one sub-layer in a stack. The input is a list of rows such as

    {"step": 100, "name": "gradient_norm", "value": 0.3, "site": 5, "layer": 1, "kind": "cross"}

Steps and sites are downsampled before they are drawn, and non-finite values are dropped; the
chart's note states both. Where nothing is left to draw, the functions return a note instead of a
chart.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import altair as alt

from addnorm.core.rows import Row
from addnorm.report.charts.base import (
    SITE_AXIS_TITLE,
    SITE_TOOLTIPS,
    VALUES,
    assemble_chart,
    depth_color,
    hover_layer,
    interpolate_color,
    log_ticks,
    named_data,
    site_axis,
    site_name_expression,
    step_axis,
    value_axis,
)
from addnorm.report.charts.curves import point_marks
from addnorm.report.downsample import evenly_spaced
from addnorm.report.format import numbered_site, round_significant, site_label
from addnorm.report.html.notes import empty_chart_note, nonfinite_note, nonpositive_note
from addnorm.report.html.page import Chart, Note

MAX_CELLS, MAX_LINES, MAX_TICKS = 2400, 48, 12
"""Limits on the values of a chart, the sites that are drawn, and the site labels of a heat map."""


def plot_over_steps(rows: Sequence[Row], *, title: str, y: str) -> Chart | Note:
    """Return a chart with one line for each site over steps, colored by depth."""
    finite = _finite_rows(rows)
    if not finite:
        return empty_chart_note(title, len(rows))
    steps, sites, drawn, notes = _sample_rows(finite)
    ticks = log_ticks(row["value"] for row in drawn)
    base = _base_chart(finite)
    lines = base.mark_line(
        strokeWidth=1.3, opacity=0.9, aria=False, point=point_marks(steps, 3)
    ).encode(x=step_axis(), y=value_axis(y, ticks), detail="site:O", color=depth_color(sites))
    hover = hover_layer(
        base, [*SITE_TOOLTIPS, alt.Tooltip("value:Q", title=y)], y=value_axis(y, ticks)
    )
    notes = [*notes, *_omission_notes(rows, finite, drawn, log=bool(ticks))]
    return assemble_chart(
        title, [lines, hover], notes=notes, values={VALUES: _chart_rows(drawn, log=bool(ticks))}
    )


def plot_over_depth(
    rows: Sequence[Row],
    *,
    title: str,
    y: str,
    x: str = SITE_AXIS_TITLE,
    line_field: str = "step",
    max_lines: int = 5,
) -> Chart | Note:
    """Return a chart over sites, with one line for each of a few steps or for each stream.

    Args:
        rows: rows of sites
        title: heading of the chart
        y: title of the value axis
        x: title of the other axis
        line_field: integer field with one line for each of its values; "step" or "stream"
        max_lines: maximum number of lines; evenly spaced values of the field are drawn
    """
    finite = _finite_rows(rows)
    if not finite:
        return empty_chart_note(title, len(rows))
    line_values = evenly_spaced(sorted({row[line_field] for row in finite}), max_lines)
    drawn = [row for row in finite if row[line_field] in set(line_values)]
    ticks = log_ticks(row["value"] for row in drawn)
    base = _base_chart(finite)
    count = len(line_values)
    colors = alt.Scale(
        domain=line_values, range=[interpolate_color(index, count) for index in range(count)]
    )
    needs_legend = line_field == "step" or count > 1
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3) if needs_legend else None
    lines = base.mark_line(strokeWidth=1.6, aria=False, point={"size": 18, "aria": False}).encode(
        x=site_axis(x),
        y=value_axis(y, ticks),
        color=alt.Color(
            f"{line_field}:O", title=line_field, sort=line_values, legend=legend, scale=colors
        ),
    )
    site_name = alt.Tooltip("site_name:N", title="site")
    tooltip = [site_name, alt.Tooltip(f"{line_field}:Q"), alt.Tooltip("value:Q", title=y)]
    hover = hover_layer(base, tooltip, y=value_axis(y, ticks), x=site_axis(x))
    return assemble_chart(
        title,
        [lines, hover],
        notes=_omission_notes(rows, finite, drawn, log=bool(ticks)),
        values={VALUES: _chart_rows(drawn, line_field, log=bool(ticks))},
    )


def plot_heatmap(rows: Sequence[Row], *, title: str, y: str) -> Chart | Note:
    """Return a heat map of sites by steps; `y` is the title of the color scale."""
    finite = _finite_rows(rows)
    if not finite:
        return empty_chart_note(title, len(rows))
    steps, sites, drawn, notes = _sample_rows(finite)
    log = bool(log_ticks(row["value"] for row in drawn))
    gaps = [after - before for before, after in pairwise(steps)]
    # A rectangle ends where the next step starts; the last one is as wide as the median.
    ends = dict(zip(steps, [*steps[1:], steps[-1] + (median(gaps) if gaps else 1)], strict=True))
    values = [row | {"end": ends[row["step"]]} for row in _chart_rows(drawn, log=log)]
    site_ticks = sites[:: -(-len(sites) // MAX_TICKS)]
    color = alt.Color(
        "value:Q",
        title=f"{y}, log" if log else y,
        scale=alt.Scale(scheme="viridis", type="log" if log else "linear"),
        legend=alt.Legend(gradientLength=150, tickCount=3, format="~g"),
    )
    cells = (
        _base_chart(finite)
        .mark_rect(aria=False)
        .encode(
            x=step_axis(padding=0),
            x2="end:Q",
            y=alt.Y("site:O", title="site", sort="descending", axis=alt.Axis(values=site_ticks)),
            color=color,
            tooltip=[*SITE_TOOLTIPS, alt.Tooltip("value:Q", title=y)],
        )
    )
    notes = [*notes, *_omission_notes(rows, finite, drawn, log=log)]
    return assemble_chart(title, [cells], notes=notes, values={VALUES: values})


def _base_chart(rows: Sequence[Row]) -> alt.Chart:
    """Return a chart without marks whose rows have the field `site_name`."""
    names = {str(row["site"]): numbered_site(row["site"], site_label(row)) for row in rows}
    return alt.Chart(named_data(VALUES)).transform_calculate(site_name=site_name_expression(names))


def _finite_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if math.isfinite(row["value"])]


def _sample_rows(rows: Sequence[Row]) -> tuple[list[int], list[int], list[Row], list[str]]:
    """Return the steps and sites that are drawn, their rows, and notes on the omitted ones."""
    all_steps, all_sites = (sorted({row[name] for row in rows}) for name in ("step", "site"))
    sites = evenly_spaced(all_sites, MAX_LINES)
    steps = evenly_spaced(all_steps, max(20, min(120, MAX_CELLS // len(sites))))
    step_set, site_set = set(steps), set(sites)
    drawn = [row for row in rows if row["step"] in step_set and row["site"] in site_set]
    notes = [
        f"{len(kept):,} of {len(available):,} {name} are drawn."
        for kept, available, name in (
            (steps, all_steps, "measured steps"),
            (sites, all_sites, "sites"),
        )
        if len(kept) < len(available)
    ]
    return steps, sites, drawn, notes


def _omission_notes(
    rows: Sequence[Row], finite: Sequence[Row], drawn: Sequence[Row], *, log: bool
) -> list[str]:
    num_nonpositive = sum(row["value"] <= 0 for row in drawn) if log else 0
    return [nonfinite_note(len(rows) - len(finite)), nonpositive_note(num_nonpositive)]


def _chart_rows(
    rows: Sequence[Row], line_field: str = "step", *, log: bool
) -> list[dict[str, Any]]:
    return [
        {
            line_field: row[line_field],
            "site": row["site"],
            "value": round_significant(row["value"]),
        }
        for row in rows
        if not log or row["value"] > 0
    ]
