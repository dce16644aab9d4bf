"""The chart of a claim: means over seeds with their intervals, a line for each arm."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from addnorm.claims import Drawing
from addnorm.comparison.statistics import Estimate
from addnorm.core.rows import Row
from addnorm.report.charts.base import THEME, VALUES, data, finished, hover
from addnorm.report.comparison.curves import colour_of, dashes, short, symbols
from addnorm.report.html.notes import not_finite, nothing
from addnorm.report.html.page import Chart, Note
from addnorm.report.theme import Look, looks

GUIDES = "guides"
CUT = 0.1
"""Where an interval that reaches zero ends on a log axis, as a share of its mean."""
NAMES = {"lr": "learning rate"}
"""Fields whose axis is called otherwise."""
IN_A_ROW = 3
"""Entries of a legend beside each other."""


def claim_chart(drawing: Drawing, rows: Sequence[Row], title: str) -> Chart | Note:
    """The rows that a claim wants to be seen; a note where there are none."""
    own = [row for row in rows if row["name"] == drawing.name]
    groups = _groups(drawing, own)
    if not groups:
        return nothing(title, len(own))
    arms = list(looks(list(dict.fromkeys(arm for arm, _ in groups))).values())
    values, cut = _values(drawing, groups)
    layers = _layers(drawing, arms)
    lost = sum(not math.isfinite(row["value"]) for row in own)
    notes = ["Means over seeds; bars are 95 % intervals.", not_finite(lost)]
    notes += ["Those that reach zero are cut at a tenth of the mean."] if cut else []
    guides = [{"value": value, "told": told} for value, told in drawing.guides]
    more = {GUIDES: guides} if guides else {}
    chart = finished(title, layers, notes=notes, values={VALUES: values, **more})
    legend = {"legend": THEME["legend"] | {"columns": IN_A_ROW}}
    return replace(chart, spec={**chart.spec, "config": THEME | legend})


def _groups(drawing: Drawing, rows: Sequence[Row]) -> dict[tuple[str, float], list[float]]:
    """The finite values of each arm at each place."""
    found: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        if math.isfinite(row["value"]) and (row["value"] > 0 or not drawing.log_y):
            arm = ", ".join(_told(field, row[field]) for field in drawing.by)
            found.setdefault((arm, row[drawing.x]), []).append(row["value"])
    return found


def _told(field: str, value: Any) -> str:
    """What tells a line from another, in words."""
    if field == "warmup":
        return f"warm-up {value}" if value else "no warm-up"
    return f"{value} layers" if field == "depth" else str(value)


def _values(
    drawing: Drawing, groups: Mapping[tuple[str, float], Sequence[float]]
) -> tuple[list[dict[str, Any]], bool]:
    """A row for each arm and place; and whether an interval had to be cut."""
    made, cut = [], False
    for (arm, x), values in sorted(groups.items(), key=lambda item: item[0][1]):
        found = Estimate.of(values)
        assert found is not None
        half = found.half or 0.0
        low = found.mean - half
        if drawing.log_y and low <= 0:
            low, cut = CUT * found.mean, True
        told = {"arm": arm, "x": x, "value": found.mean, "low": low, "high": found.mean + half}
        made.append({k: short(v) if isinstance(v, float) else v for k, v in told.items()})
    return made, cut


def _scale(log: bool, **more: Any) -> alt.Scale:
    """A log scale, or one that need not hold zero."""
    return alt.Scale(type="log", **more) if log else alt.Scale(type="linear", zero=False, **more)


def _layers(drawing: Drawing, arms: Sequence[Look]) -> list[Any]:
    x = alt.X(
        "x:Q",
        title=NAMES.get(drawing.x, drawing.x.replace("_", " ")),
        scale=_scale(drawing.log_x, nice=False, padding=14),
        axis=alt.Axis(format=".4~g", tickCount=6, labelOverlap=True),
    )
    scale = _scale(drawing.log_y, padding=8)
    axis = alt.Axis(format=".4~g", tickCount=5, labelOverlap="greedy")
    y, title = alt.Y("value:Q", title=drawing.y, scale=scale, axis=axis), drawing.y
    base, colour = alt.Chart(data(VALUES)), colour_of(arms)
    tips = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("x:Q", title=drawing.x, format=".4g"),
        alt.Tooltip("value:Q", title=title, format=".4g"),
        alt.Tooltip("low:Q", title="from", format=".4g"),
        alt.Tooltip("high:Q", title="to", format=".4g"),
    ]
    layers: list[Any] = [
        base.mark_rule(strokeWidth=1.4, opacity=0.7, aria=False).encode(
            x=x, y=alt.Y("low:Q", title=title, scale=scale, axis=axis), y2="high:Q", color=colour
        ),
        base.mark_line(strokeWidth=1.8, aria=False).encode(x=x, y=y, color=colour, **dashes(arms)),
        base.mark_point(filled=True, size=44, opacity=1, aria=False).encode(
            x=x, y=y, color=colour, **symbols(arms)
        ),
        hover(base, tips, y=y, x=x, fields=("arm", "x")),
    ]
    if drawing.guides:
        guide = alt.Chart(data(GUIDES)).encode(y=y)
        look: dict[str, Any] = {"align": "left", "dx": 4, "dy": -6, "color": "var(--quiet)"}
        layers += [
            guide.mark_rule(strokeDash=[4, 3], color="var(--quiet)", aria=False),
            guide.mark_text(**look).encode(x=alt.value(0), text="told:N"),
        ]
    return layers
