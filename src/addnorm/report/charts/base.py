"""What charts are made of: the theme, axes, marks of events, and points that answer the pointer."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from addnorm.report.diagram.svg import FONT_FAMILY
from addnorm.report.downsample import evenly_spaced
from addnorm.report.html.page import HOVER_ONLY_STYLE, Chart

MAX_EVENT_MARKS = 40
CHART_HEIGHT, TALL_CHART_HEIGHT = 240, 320
MIN_LOG_AXIS_RATIO = 12.0
"""Largest over smallest from which on a log axis shows more."""
LABELED_EVENT = "diverged"
"""The event that is told in words."""
VALUES = "values"
"""Name of the data of a chart."""
DEPTH_COLORS = ["#3a86d4", "#a58a93", "#e08a2c"]
"""First to last site: blue to orange, told apart by the colour-blind, seen on white and black."""
SITE_TOOLTIPS = [
    alt.Tooltip("step:Q", title="step", format=","),
    alt.Tooltip("where:N", title="site"),
]
"""What a tooltip tells of where a value was measured."""
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


@dataclass(frozen=True)
class Event:
    """Something that happened at a step: a spike of the loss, a divergence."""

    step: int
    label: str
    value: float = math.nan
    location: str = ""


def event_marks(events: Sequence[Event], middle_step: float) -> list[alt.Chart]:
    """Dashed lines where something happened; the first divergence in words.

    middle: of the steps; words stand on the side where there is room.
    """
    if not events:
        return []
    base = alt.Chart(named_data("events")).encode(
        x=step_axis(), tooltip=[alt.Tooltip("what:N"), alt.Tooltip("step:Q", format=",")]
    )
    colour = alt.condition(
        alt.datum.what == "spike", alt.value("var(--purple)"), alt.value("var(--ink)")
    )
    grave = [each.step for each in events if each.label == LABELED_EVENT]
    align: Literal["left", "right"]
    align, dx = ("right", -8) if grave and grave[0] > middle_step else ("left", 8)
    words = (
        alt.Chart(named_data("words"))
        .mark_text(align=align, dx=dx, dy=4, baseline="top", color="var(--ink)", fontWeight=600)
        .encode(x=step_axis(), y=alt.value(0), text="told:N")
    )
    return [
        base.mark_rule(strokeDash=[4, 3], opacity=0.8).encode(color=colour),
        base.mark_point(shape="triangle-down", filled=True, size=60, opacity=1).encode(
            y=alt.value(5), color=colour
        ),
        *([words] if grave else []),
    ]


def event_data(events: Sequence[Event]) -> dict[str, list[dict[str, Any]]]:
    """The data that `event_marks` draw."""
    if not events:
        return {}
    shown = evenly_spaced(events, MAX_EVENT_MARKS)
    grave = [each for each in events if each.label == LABELED_EVENT][:1]
    return {
        "events": [{"step": each.step, "what": each.label} for each in shown],
        "words": [{"step": e.step, "told": f"{e.label} at {e.step:,}"} for e in grave],
    }


def hover_layer(
    base: alt.Chart,
    tooltip: Sequence[alt.Tooltip],
    *,
    y: alt.Y,
    x: alt.X | None = None,
    fields: Sequence[str] = (),
) -> Any:
    """Unseen points that show themselves and their numbers to the nearest pointer.

    fields: what tells a point from others, where rows hold several points.
    """
    same: dict[str, Any] = {"fields": list(fields)} if fields else {}
    near = alt.selection_point(
        on="pointerover", nearest=True, clear="pointerout", empty=False, **same
    )
    return (
        base.mark_point(
            style=HOVER_ONLY_STYLE, filled=True, size=50, color="var(--ink)", aria=False
        )
        .encode(
            x=step_axis() if x is None else x,
            y=y,
            opacity=alt.condition(near, alt.value(1), alt.value(0)),
            tooltip=alt.TooltipValue(alt.ExprRef(_tooltip_expression(tooltip))),
        )
        .add_params(near)
    )


def _tooltip_expression(tooltip: Sequence[alt.Tooltip]) -> str:
    """A tooltip as an expression of our own.

    Vega-Lite's own knows the row under the nearest pointer for numbers only, and calls all else
    undefined.
    """
    told = []
    for each in tooltip:
        field, _, kind = each["shorthand"].partition(":")
        title, digits = (
            default if each[name] is alt.Undefined else each[name]
            for name, default in (("title", field), ("format", ""))
        )
        value = f"(datum.datum || datum)[{json.dumps(field)}]"
        shown = f"format({value}, {json.dumps(digits)})" if kind == "Q" else f"'' + {value}"
        told.append(f"{json.dumps(title)}: {shown}")
    return "{" + ", ".join(told) + "}"


def assemble_chart(
    title: str,
    layers: Sequence[Any],
    *,
    notes: Sequence[str],
    values: Mapping[str, list[dict[str, Any]]],
    wide: bool = False,
) -> Chart:
    """The layers as one chart that fills its room and zooms along its first axis."""
    # Only with the key or a pinch: a page must scroll when the wheel or a finger crosses a chart.
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
    # Not checked a second time: parts were checked when made, and Vega-Lite compiles the whole.
    spec = chart.to_dict(validate=False) | {"config": CHART_CONFIG, "datasets": dict(values)}
    return Chart(title, spec, " ".join(note for note in notes if note), wide)


def named_data(name: str) -> alt.NamedData:
    """Data by name; the values join the finished chart, past altair's slow check of each."""
    return alt.NamedData(name=name)


def step_axis(padding: int = 8) -> alt.X:
    """The axis of steps."""
    axis = alt.Axis(format=",d", tickMinStep=1, tickCount=6, labelOverlap=True)
    scale = alt.Scale(zero=False, nice=False, padding=padding)
    return alt.X("step:Q", title="step", scale=scale, axis=axis)


def value_axis(title: str, ticks: Sequence[float]) -> alt.Y:
    """The axis of values: linear, or log where there are ticks for it."""
    if not ticks:
        return alt.Y(
            "value:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)
        )
    scale = alt.Scale(type="log", nice=False, padding=8)
    axis = alt.Axis(values=list(ticks), format="~g")
    return alt.Y("value:Q", title=f"{title}, log", scale=scale, axis=axis)


def log_ticks(values: Iterable[float]) -> list[float]:
    """Ticks of a log axis, if one helps: values above zero and wide apart; none otherwise.

    >>> log_ticks([0.3, 1.0, 2.0]), log_ticks([0.3, 8.0, 50.0]), log_ticks([0.1, 2e3])
    ([], [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0], [0.1, 1.0, 10.0, 100.0, 1000.0])
    """
    given = list(values)
    above = [value for value in given if value > 0]
    if not above or len(above) < 0.9 * len(given) or max(above) / min(above) < MIN_LOG_AXIS_RATIO:
        return []
    low, high = min(above), max(above)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    leads = (1, 2, 5) if high / low < 1000 else (1,)
    powers = powers[:: max(1, len(powers) // 6)]
    ticks = [float(f"{lead}e{power}") for power in powers for lead in leads]
    return [tick for tick in ticks if low <= tick <= high]


def depth_color(sites: Sequence[int]) -> alt.Color:
    """A colour for each site, from the first to the last."""
    legend = alt.Legend(gradientLength=140, tickCount=4, tickMinStep=1, format="d")
    scale = alt.Scale(range=DEPTH_COLORS, domain=[sites[0], max(sites[-1], sites[0] + 1)])
    return alt.Color("site:Q", title="site, first to last", scale=scale, legend=legend)


def interpolate_color(number: int, count: int) -> str:
    """The colour of one of `count` steps, along DEPTH."""
    place = number / max(1, count - 1) * (len(DEPTH_COLORS) - 1)
    low = min(int(place), len(DEPTH_COLORS) - 2)
    pairs = zip(*(bytes.fromhex(DEPTH_COLORS[low + n][1:]) for n in (0, 1)), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pairs)
