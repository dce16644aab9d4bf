"""The chart of a claim: one line for each arm, means over seeds with 95 % intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from addnorm.claims import ChartSpec
from addnorm.comparison.statistics import Estimate
from addnorm.core.rows import Row
from addnorm.report.charts.arm_encodings import color_encoding, dash_encoding, symbol_encoding
from addnorm.report.charts.base import CHART_CONFIG, VALUES, assemble_chart, hover_layer, named_data
from addnorm.report.format import round_significant
from addnorm.report.html.notes import empty_chart_note, nonfinite_note
from addnorm.report.html.page import Chart, Note
from addnorm.report.theme import ArmStyle, make_arm_styles

GUIDES = "guides"
LOG_CUT_FRACTION = 0.1
"""Lower end of an interval that reaches zero on a log axis, as a fraction of its mean."""
AXIS_TITLES = {"lr": "learning rate"}
"""Axis titles of fields whose name is not readable text."""
LEGEND_COLUMNS = 3


def plot_claim(chart_spec: ChartSpec, rows: Sequence[Row], title: str) -> Chart | Note:
    """Return the chart of a claim, or a note if no row has a finite value.

    Args:
        chart_spec: which rows are drawn, their x field, and the fields that define an arm
        rows: rows of the claim
        title: heading of the chart
    """
    rows = [row for row in rows if row["name"] == chart_spec.name]
    groups = _group_values(chart_spec, rows)
    if not groups:
        return empty_chart_note(title, len(rows))
    arms = list(make_arm_styles(list(dict.fromkeys(arm for arm, _ in groups))).values())
    values, is_cut = _estimate_rows(chart_spec, groups)
    num_nonfinite = sum(not math.isfinite(row["value"]) for row in rows)
    notes = ["Means over seeds; bars are 95 % intervals.", nonfinite_note(num_nonfinite)]
    notes += ["Intervals that reach zero are cut at a tenth of the mean."] if is_cut else []
    datasets = {VALUES: values}
    if chart_spec.guides:
        datasets[GUIDES] = [{"value": value, "label": label} for value, label in chart_spec.guides]
    layers = _build_layers(chart_spec, arms)
    chart = assemble_chart(title, layers, notes=notes, values=datasets)
    legend = {"legend": CHART_CONFIG["legend"] | {"columns": LEGEND_COLUMNS}}
    return replace(chart, spec={**chart.spec, "config": CHART_CONFIG | legend})


def _group_values(
    chart_spec: ChartSpec, rows: Sequence[Row]
) -> dict[tuple[str, float], list[float]]:
    """Return the values over seeds by arm and x, without those that the axis cannot show."""
    groups: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        if math.isfinite(row["value"]) and (row["value"] > 0 or not chart_spec.log_y):
            arm = ", ".join(_field_label(field, row[field]) for field in chart_spec.group_by)
            groups.setdefault((arm, row[chart_spec.x]), []).append(row["value"])
    return groups


def _field_label(field: str, value: Any) -> str:
    if field == "warmup":
        return f"warm-up {value}" if value else "no warm-up"
    return f"{value} layers" if field == "depth" else str(value)


def _estimate_rows(
    chart_spec: ChartSpec, groups: Mapping[tuple[str, float], Sequence[float]]
) -> tuple[list[dict[str, Any]], bool]:
    """Return one row for each arm and x, and whether an interval was cut for a log axis."""
    rows, is_cut = [], False
    for (arm, x), values in sorted(groups.items(), key=lambda item: item[0][1]):
        estimate = Estimate.from_values(values)
        assert estimate is not None
        half = estimate.half or 0.0
        low, high = estimate.mean - half, estimate.mean + half
        if chart_spec.log_y and low <= 0:
            low, is_cut = LOG_CUT_FRACTION * estimate.mean, True
        numbers = {"x": x, "value": estimate.mean, "low": low, "high": high}
        rounded = {
            name: round_significant(number, 4) if isinstance(number, float) else number
            for name, number in numbers.items()
        }
        rows.append({"arm": arm, **rounded})
    return rows, is_cut


def _scale(log: bool, **options: Any) -> alt.Scale:
    if log:
        return alt.Scale(type="log", **options)
    return alt.Scale(type="linear", zero=False, **options)


def _build_layers(chart_spec: ChartSpec, arms: Sequence[ArmStyle]) -> list[Any]:
    x_title = AXIS_TITLES.get(chart_spec.x, chart_spec.x.replace("_", " "))
    x = alt.X(
        "x:Q",
        title=x_title,
        scale=_scale(chart_spec.log_x, nice=False, padding=14),
        axis=alt.Axis(format=".4~g", tickCount=6, labelOverlap=True),
    )
    scale = _scale(chart_spec.log_y, padding=8)
    axis = alt.Axis(format=".4~g", tickCount=5, labelOverlap="greedy")
    y = alt.Y("value:Q", title=chart_spec.y, scale=scale, axis=axis)
    low = alt.Y("low:Q", title=chart_spec.y, scale=scale, axis=axis)
    base, color = alt.Chart(named_data(VALUES)), color_encoding(arms)
    tooltip = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("x:Q", title=x_title, format=".4g"),
        alt.Tooltip("value:Q", title=chart_spec.y, format=".4g"),
        alt.Tooltip("low:Q", title="from", format=".4g"),
        alt.Tooltip("high:Q", title="to", format=".4g"),
    ]
    layers: list[Any] = [
        base.mark_rule(strokeWidth=1.4, opacity=0.7, aria=False).encode(
            x=x, y=low, y2="high:Q", color=color
        ),
        base.mark_line(strokeWidth=1.8, aria=False).encode(
            x=x, y=y, color=color, **dash_encoding(arms)
        ),
        base.mark_point(filled=True, size=44, opacity=1, aria=False).encode(
            x=x, y=y, color=color, **symbol_encoding(arms)
        ),
        hover_layer(base, tooltip, y=y, x=x, fields=("arm", "x")),
    ]
    if chart_spec.guides:
        guide = alt.Chart(named_data(GUIDES)).encode(y=y)
        text: dict[str, Any] = {"align": "left", "dx": 4, "dy": -6, "color": "var(--quiet)"}
        layers += [
            guide.mark_rule(strokeDash=[4, 3], color="var(--quiet)", aria=False),
            guide.mark_text(**text).encode(x=alt.value(0), text="label:N"),
        ]
    return layers
