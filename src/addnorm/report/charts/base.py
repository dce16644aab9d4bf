"""Building blocks of all charts: configuration, axes, event marks and the hover layer.

A chart is a list of altair layers over named datasets. `assemble_chart` joins the layers and adds
the values afterwards as plain lists, because altair validates inline values one by one.

    assemble_chart("Loss", [line, hover], values={"values": [{"step": 1, "value": 2.3}]}, ...)
    -> Chart(title="Loss", spec={"layer": [...], "datasets": {"values": [...]}, "config": ...})
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import altair as alt

from addnorm.report.downsample import evenly_spaced
from addnorm.report.html.page import HOVER_ONLY_STYLE, Chart
from addnorm.report.run_history import Event
from addnorm.report.theme import FONT_FAMILY

MAX_EVENT_MARKS = 40
CHART_HEIGHT, TALL_CHART_HEIGHT = 240, 320
"""Height of the plot area in pixels."""
MIN_LOG_AXIS_RATIO = 12.0
"""Ratio of the largest to the smallest value from which on a log axis is used."""
LABELED_EVENT = "diverged"
"""The event whose first occurrence gets a text label."""
VALUES, EVENTS, EVENT_TEXTS = "values", "events", "event_texts"
"""Names of datasets."""
DEPTH_COLORS = ["#3a86d4", "#a58a93", "#e08a2c"]
"""Color scale from the first to the last site: color-blind safe, visible in both themes."""
SITE_AXIS_TITLE = "site, from input to output"
SITE_TOOLTIPS = [
    alt.Tooltip("step:Q", title="step", format=","),
    alt.Tooltip("site_name:N", title="site"),
]
CHART_CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": FONT_FAMILY.replace("'", ""),
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--quiet)", "titleColor": "var(--quiet)", "gridColor": "var(--edge)",
        "domainColor": "var(--quiet)", "tickColor": "var(--quiet)", "titleFontWeight": 400,
        "labelFontSize": 12, "titleFontSize": 12,
    },
    "axisX": {"grid": False, "labelFlush": True},
    "axisY": {"titlePadding": 10},
    "legend": {
        "orient": "top", "titleOrient": "left", "labelColor": "var(--ink)",
        "titleColor": "var(--quiet)", "titleFontWeight": 400, "labelFontSize": 12,
        "titleFontSize": 12, "labelLimit": 260,
    },
}  # fmt: skip


def event_marks(events: Sequence[Event], middle_step: float) -> list[alt.Chart]:
    """Return layers that mark events with dashed vertical lines.

    Args:
        events: spikes, divergences
        middle_step: middle of the step axis; the text label is placed on the side with more space
    """
    if not events:
        return []
    base = alt.Chart(named_data(EVENTS)).encode(
        x=step_axis(), tooltip=[alt.Tooltip("event:N"), alt.Tooltip("step:Q", format=",")]
    )
    color = alt.condition(
        alt.datum.event == "spike", alt.value("var(--purple)"), alt.value("var(--ink)")
    )
    labeled_steps = [each.step for each in events if each.label == LABELED_EVENT]
    align: Literal["left", "right"]
    align, dx = ("right", -8) if labeled_steps and labeled_steps[0] > middle_step else ("left", 8)
    label = (
        alt.Chart(named_data(EVENT_TEXTS))
        .mark_text(align=align, dx=dx, dy=4, baseline="top", color="var(--ink)", fontWeight=600)
        .encode(x=step_axis(), y=alt.value(0), text="label:N")
    )
    return [
        base.mark_rule(strokeDash=[4, 3], opacity=0.8).encode(color=color),
        base.mark_point(shape="triangle-down", filled=True, size=60, opacity=1).encode(
            y=alt.value(5), color=color
        ),
        *([label] if labeled_steps else []),
    ]


def event_data(events: Sequence[Event]) -> dict[str, list[dict[str, Any]]]:
    """Return the datasets of the layers that `event_marks` returns."""
    if not events:
        return {}
    marked = evenly_spaced(events, MAX_EVENT_MARKS)
    labeled = [each for each in events if each.label == LABELED_EVENT][:1]
    return {
        EVENTS: [{"step": each.step, "event": each.label} for each in marked],
        EVENT_TEXTS: [{"step": e.step, "label": f"{e.label} at {e.step:,}"} for e in labeled],
    }


def hover_layer(
    base: alt.Chart,
    tooltip: Sequence[alt.Tooltip],
    *,
    y: alt.Y,
    x: alt.X | None = None,
    fields: Sequence[str] = (),
) -> Any:
    """Return invisible points, of which the one nearest to the pointer appears with a tooltip.

    Args:
        base: chart with the data and transforms of the visible layers
        tooltip: fields of the tooltip
        y: value axis
        x: other axis, by default that of steps
        fields: fields that identify a point, where one row of the data holds several points
    """
    identity: dict[str, Any] = {"fields": list(fields)} if fields else {}
    nearest = alt.selection_point(
        on="pointerover", nearest=True, clear="pointerout", empty=False, **identity
    )
    return (
        base.mark_point(
            style=HOVER_ONLY_STYLE, filled=True, size=50, color="var(--ink)", aria=False
        )
        .encode(
            x=step_axis() if x is None else x,
            y=y,
            opacity=alt.condition(nearest, alt.value(1), alt.value(0)),
            tooltip=alt.TooltipValue(alt.ExprRef(_tooltip_expression(tooltip))),
        )
        .add_params(nearest)
    )


def _tooltip_expression(tooltip: Sequence[alt.Tooltip]) -> str:
    """Return a tooltip as a Vega expression.

    With `nearest=True`, the datum under the pointer is a Voronoi cell that wraps the row as
    `datum.datum`. Vega-Lite's own tooltips unwrap it for quantitative fields only and show
    "undefined" for all others.
    """
    entries = []
    for each in tooltip:
        field, _, kind = each["shorthand"].partition(":")
        title, number_format = (
            default if each[name] is alt.Undefined else each[name]
            for name, default in (("title", field), ("format", ""))
        )
        value = f"(datum.datum || datum)[{json.dumps(field)}]"
        text = f"format({value}, {json.dumps(number_format)})" if kind == "Q" else f"'' + {value}"
        entries.append(f"{json.dumps(title)}: {text}")
    return "{" + ", ".join(entries) + "}"


def assemble_chart(
    title: str,
    layers: Sequence[Any],
    *,
    notes: Sequence[str],
    values: Mapping[str, list[dict[str, Any]]],
    wide: bool = False,
) -> Chart:
    """Join layers into one chart that fills its container and zooms along the x axis.

    Args:
        title: heading of the chart
        layers: altair charts over named data, drawn in this order
        notes: sentences below the title; empty ones are dropped
        values: rows of each named dataset
        wide: whether the chart spans the full width of the page
    """
    # Zoom needs a modifier key or a pinch: the page must scroll when the pointer is over a chart.
    zoom = alt.selection_interval(
        bind="scales",
        encodings=["x"],
        zoom="wheel![event.ctrlKey || event.metaKey]",
        translate="[pointerdown[event.pointerType == 'mouse'], window:pointerup]"
        " > window:pointermove!",
    )
    first, *others = layers
    height = TALL_CHART_HEIGHT if wide else CHART_HEIGHT
    chart = alt.layer(first.add_params(zoom), *others).properties(width="container", height=height)
    # altair validated each layer when it was built; validating the whole again takes seconds.
    spec = chart.to_dict(validate=False) | {"config": CHART_CONFIG, "datasets": dict(values)}
    return Chart(title, spec, " ".join(note for note in notes if note), wide)


def named_data(name: str) -> alt.NamedData:
    """Return a reference to a dataset whose values `assemble_chart` adds."""
    return alt.NamedData(name=name)


def step_axis(padding: int = 8) -> alt.X:
    """Return the x axis of training steps."""
    axis = alt.Axis(format=",d", tickMinStep=1, tickCount=6, labelOverlap=True)
    scale = alt.Scale(zero=False, nice=False, padding=padding)
    return alt.X("step:Q", title="step", scale=scale, axis=axis)


def site_axis(title: str = SITE_AXIS_TITLE) -> alt.X:
    """Return the x axis of sites."""
    return alt.X(
        "site:Q",
        title=title,
        axis=alt.Axis(tickMinStep=1, format="d", labelOverlap=True),
        scale=alt.Scale(nice=False, zero=False, padding=8),
    )


def value_axis(title: str, ticks: Sequence[float], *, only: float | None = None) -> alt.Y:
    """Return the y axis of values: log with these ticks, or linear if there are none.

    Args:
        title: title of the axis
        ticks: ticks of a log axis; see `log_ticks`
        only: the only value, if all are equal; Vega would round the label of its tick
    """
    if not ticks:
        axis = alt.Axis(tickCount=5)
        if only is not None:
            axis = alt.Axis(values=[only], format="~g")
        return alt.Y("value:Q", title=title, scale=alt.Scale(zero=False), axis=axis)
    scale = alt.Scale(type="log", nice=False, padding=8)
    axis = alt.Axis(values=list(ticks), format="~g")
    return alt.Y("value:Q", title=f"{title}, log", scale=scale, axis=axis)


def log_ticks(values: Iterable[float]) -> list[float]:
    """Return the ticks of a log axis, or an empty list if a linear axis shows the values better.

    A log axis is chosen if at least 90 % of the values are positive and these span a ratio of at
    least `MIN_LOG_AXIS_RATIO`.

    >>> log_ticks([0.3, 1.0, 2.0]), log_ticks([0.3, 8.0, 50.0]), log_ticks([0.1, 2e3])
    ([], [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0], [0.1, 1.0, 10.0, 100.0, 1000.0])
    """
    values = list(values)
    positive = [value for value in values if value > 0]
    if len(positive) < max(1, 0.9 * len(values)):
        return []
    low, high = min(positive), max(positive)
    if high / low < MIN_LOG_AXIS_RATIO:
        return []
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    leading_digits = (1, 2, 5) if high / low < 1000 else (1,)
    powers = powers[:: max(1, len(powers) // 6)]
    ticks = [float(f"{digit}e{power}") for power in powers for digit in leading_digits]
    return [tick for tick in ticks if low <= tick <= high]


def depth_color(sites: Sequence[int]) -> alt.Color:
    """Return the color encoding of sites, from the first to the last."""
    legend = alt.Legend(gradientLength=140, tickCount=4, tickMinStep=1, format="d")
    scale = alt.Scale(range=DEPTH_COLORS, domain=[sites[0], max(sites[-1], sites[0] + 1)])
    return alt.Color("site:Q", title="site", scale=scale, legend=legend)


def interpolate_color(index: int, count: int) -> str:
    """Return the color of one of `count` lines, interpolated along `DEPTH_COLORS`."""
    position = index / max(1, count - 1) * (len(DEPTH_COLORS) - 1)
    low = min(int(position), len(DEPTH_COLORS) - 2)
    pairs = zip(*(bytes.fromhex(DEPTH_COLORS[low + n][1:]) for n in (0, 1)), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (position - low)):02x}" for a, b in pairs)


def site_name_expression(names: Mapping[str, str]) -> str:
    """Return a Vega expression that looks up `datum.site`, so that rows need not hold names.

    Args:
        names: name of each site by its index as text
    """
    return f"({json.dumps(names)})['' + datum.site]"
