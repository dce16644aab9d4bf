"""The chart of a claim: means over seeds with their intervals, a line for each arm."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from addnorm.claims import ChartSpec
from addnorm.comparison.statistics import Estimate
from addnorm.core.rows import Row
from addnorm.report.charts.base import CHART_CONFIG, VALUES, assemble_chart, hover_layer, named_data
from addnorm.report.comparison.curves import (
    color_encoding,
    dash_encoding,
    round_significant,
    symbol_encoding,
)
from addnorm.report.html.notes import empty_chart_note, nonfinite_note
from addnorm.report.html.page import Chart, Note
from addnorm.report.theme import ArmStyle, arm_styles

GUIDES = "guides"
LOG_CUT_FRACTION = 0.1
"""Where an interval that reaches zero ends on a log axis, as a share of its mean."""
AXIS_TITLES = {"lr": "learning rate"}
"""Fields whose axis is called otherwise."""
LEGEND_COLUMNS = 3
"""Entries of a legend beside each other."""


def claim_chart(chart_spec: ChartSpec, rows: Sequence[Row], title: str) -> Chart | Note:
    """The rows that a claim wants to be seen; a note where there are none."""
    own = [row for row in rows if row["name"] == chart_spec.name]
    groups = _group_values(chart_spec, own)
    if not groups:
        return empty_chart_note(title, len(own))
    arms = list(arm_styles(list(dict.fromkeys(arm for arm, _ in groups))).values())
    values, cut = _estimate_rows(chart_spec, groups)
    layers = _build_layers(chart_spec, arms)
    lost = sum(not math.isfinite(row["value"]) for row in own)
    notes = ["Means over seeds; bars are 95 % intervals.", nonfinite_note(lost)]
    notes += ["Those that reach zero are cut at a tenth of the mean."] if cut else []
    guides = [{"value": value, "told": told} for value, told in chart_spec.guides]
    more = {GUIDES: guides} if guides else {}
    chart = assemble_chart(title, layers, notes=notes, values={VALUES: values, **more})
    legend = {"legend": CHART_CONFIG["legend"] | {"columns": LEGEND_COLUMNS}}
    return replace(chart, spec={**chart.spec, "config": CHART_CONFIG | legend})


def _group_values(
    chart_spec: ChartSpec, rows: Sequence[Row]
) -> dict[tuple[str, float], list[float]]:
    """The finite values of each arm at each place."""
    found: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        if math.isfinite(row["value"]) and (row["value"] > 0 or not chart_spec.log_y):
            arm = ", ".join(_field_label(field, row[field]) for field in chart_spec.group_by)
            found.setdefault((arm, row[chart_spec.x]), []).append(row["value"])
    return found


def _field_label(field: str, value: Any) -> str:
    """What tells a line from another, in words."""
    if field == "warmup":
        return f"warm-up {value}" if value else "no warm-up"
    return f"{value} layers" if field == "depth" else str(value)


def _estimate_rows(
    chart_spec: ChartSpec, groups: Mapping[tuple[str, float], Sequence[float]]
) -> tuple[list[dict[str, Any]], bool]:
    """A row for each arm and place; and whether an interval had to be cut."""
    made, cut = [], False
    for (arm, x), values in sorted(groups.items(), key=lambda item: item[0][1]):
        found = Estimate.from_values(values)
        assert found is not None
        half = found.half or 0.0
        low = found.mean - half
        if chart_spec.log_y and low <= 0:
            low, cut = LOG_CUT_FRACTION * found.mean, True
        told = {"arm": arm, "x": x, "value": found.mean, "low": low, "high": found.mean + half}
        made.append(
            {k: round_significant(v) if isinstance(v, float) else v for k, v in told.items()}
        )
    return made, cut


def _scale(log: bool, **more: Any) -> alt.Scale:
    """A log scale, or one that need not hold zero."""
    return alt.Scale(type="log", **more) if log else alt.Scale(type="linear", zero=False, **more)


def _build_layers(chart_spec: ChartSpec, arms: Sequence[ArmStyle]) -> list[Any]:
    x = alt.X(
        "x:Q",
        title=AXIS_TITLES.get(chart_spec.x, chart_spec.x.replace("_", " ")),
        scale=_scale(chart_spec.log_x, nice=False, padding=14),
        axis=alt.Axis(format=".4~g", tickCount=6, labelOverlap=True),
    )
    scale = _scale(chart_spec.log_y, padding=8)
    axis = alt.Axis(format=".4~g", tickCount=5, labelOverlap="greedy")
    y, title = alt.Y("value:Q", title=chart_spec.y, scale=scale, axis=axis), chart_spec.y
    base, colour = alt.Chart(named_data(VALUES)), color_encoding(arms)
    tips = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("x:Q", title=chart_spec.x, format=".4g"),
        alt.Tooltip("value:Q", title=title, format=".4g"),
        alt.Tooltip("low:Q", title="from", format=".4g"),
        alt.Tooltip("high:Q", title="to", format=".4g"),
    ]
    layers: list[Any] = [
        base.mark_rule(strokeWidth=1.4, opacity=0.7, aria=False).encode(
            x=x, y=alt.Y("low:Q", title=title, scale=scale, axis=axis), y2="high:Q", color=colour
        ),
        base.mark_line(strokeWidth=1.8, aria=False).encode(
            x=x, y=y, color=colour, **dash_encoding(arms)
        ),
        base.mark_point(filled=True, size=44, opacity=1, aria=False).encode(
            x=x, y=y, color=colour, **symbol_encoding(arms)
        ),
        hover_layer(base, tips, y=y, x=x, fields=("arm", "x")),
    ]
    if chart_spec.guides:
        guide = alt.Chart(named_data(GUIDES)).encode(y=y)
        look: dict[str, Any] = {"align": "left", "dx": 4, "dy": -6, "color": "var(--quiet)"}
        layers += [
            guide.mark_rule(strokeDash=[4, 3], color="var(--quiet)", aria=False),
            guide.mark_text(**look).encode(x=alt.value(0), text="told:N"),
        ]
    return layers
