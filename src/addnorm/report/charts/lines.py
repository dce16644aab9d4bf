"""Charts of one line per model size or step over a width, a depth or a learning rate."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from addnorm.report.charts.base import (
    VALUES,
    assemble_chart,
    hover_layer,
    interpolate_color,
    log_ticks,
    named_data,
    value_axis,
)
from addnorm.report.format import round_significant
from addnorm.report.html.notes import empty_chart_note, nonfinite_note
from addnorm.report.html.page import Chart, Note

Line = tuple[str, Sequence[tuple[float, float]]]
"""Name of a line and its points (x, y)."""


def plot_lines(
    lines: Sequence[Line],
    *,
    title: str,
    x: str,
    y: str,
    series: str,
    x_format: str = "~g",
    note: str = "",
    marks: Sequence[tuple[float, float]] = (),
    wide: bool = False,
) -> Chart | Note:
    """Return a chart of lines over a log axis, colored in their order.

    Args:
        lines: names and points
        title: heading of the chart
        x: title of the horizontal axis
        y: title of the value axis, which is log if the values span a large range
        series: what the lines are, such as "step"
        x_format: format of the values of the horizontal axis
        note: sentence below the title
        marks: points to emphasize
        wide: whether the chart spans the full width of the page
    """
    rows = [
        {"series": name, "x": at, "value": round_significant(value, 4)}
        for name, points in lines
        for at, value in points
        if math.isfinite(value)
    ]
    count = sum(len(points) for _, points in lines)
    if not rows:
        return empty_chart_note(title, count)
    names = [name for name, _ in lines]
    colors = [interpolate_color(index, len(names)) for index in range(len(names))]
    at = sorted({row["x"] for row in rows})
    x_axis = alt.X(
        "x:Q",
        title=f"{x}, log",
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=alt.Axis(values=at, format=x_format, labelOverlap=True),
    )
    y_axis = value_axis(y, log_ticks(row["value"] for row in rows))
    color = alt.Color(
        "series:N", title=series, sort=names, scale=alt.Scale(domain=names, range=colors)
    )
    base = alt.Chart(named_data(VALUES))
    layers: list[Any] = [
        base.mark_line(point=True, strokeWidth=1.8).encode(x=x_axis, y=y_axis, color=color)
    ]
    data: dict[str, list[dict[str, Any]]] = {VALUES: rows}
    if marks:
        data["marks"] = [{"x": one, "value": round_significant(two, 4)} for one, two in marks]
        layers.append(
            alt.Chart(named_data("marks"))
            .mark_point(shape="circle", size=140, strokeWidth=2, color="var(--ink)")
            .encode(x=x_axis, y=y_axis)
        )
    tooltip = [
        alt.Tooltip("series:N", title=series),
        alt.Tooltip("x:Q", title=x, format=x_format),
        alt.Tooltip("value:Q", title=y, format=".4~g"),
    ]
    layers.append(hover_layer(base, tooltip, y=y_axis, x=x_axis))
    notes = [note, nonfinite_note(count - len(rows))]
    return assemble_chart(title, layers, notes=notes, values=data, wide=wide)
