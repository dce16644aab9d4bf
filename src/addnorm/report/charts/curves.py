"""Charts of numbers over training steps: losses, learning rate, speed.

Values are downsampled before they are drawn, and non-finite ones are dropped; the chart's note
states both. Where nothing is left to draw, the functions return a note instead of a chart.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from addnorm.report.charts.base import (
    VALUES,
    assemble_chart,
    event_data,
    event_marks,
    hover_layer,
    log_ticks,
    named_data,
    step_axis,
    value_axis,
)
from addnorm.report.downsample import (
    MAX_POINTS,
    Points,
    downsample,
    evenly_spaced,
    finite_points,
    moving_average,
)
from addnorm.report.format import round_significant
from addnorm.report.html.notes import (
    SMOOTHED_LABEL,
    downsampling_note,
    empty_chart_note,
    nonfinite_note,
    nonpositive_note,
    smoothing_note,
)
from addnorm.report.html.page import Chart, Note
from addnorm.report.run_history import Event

LOSS_AXIS_TITLE = "loss (nats)"
BEST = "best"
CURVE_STYLES = {
    "training": ("blue", 0.9, 0.45),
    SMOOTHED_LABEL: ("blue", 2.4, 1.0),
    "validation": ("orange", 2.0, 1.0),
}
"""Color, stroke width and opacity by the name of a curve."""
DEFAULT_CURVE_STYLE = ("blue", 1.6, 1.0)
MAX_MARKED_POINTS = 30
"""Number of points up to which each point of a curve gets a mark."""
MIN_POINTS_TO_SMOOTH = 80


def plot_loss(
    train: Points,
    valid: Points,
    *,
    title: str,
    events: Sequence[Event] = (),
    y: str = LOSS_AXIS_TITLE,
    x: str = "step",
) -> Chart | Note:
    """Return a chart of training loss, raw and smoothed, and of validation loss with its minimum.

    Args:
        train: training loss at each logged step
        valid: validation loss at each evaluation
        title: heading of the chart
        events: spikes and divergences to mark
        y: title of the value axis
        x: title of the other axis
    """
    finite_train, finite_valid = finite_points(train), finite_points(valid)
    curves = _add_smoothed({"training": downsample(finite_train)}, finite_train)
    curves |= {"validation": downsample(finite_valid)}
    num_nonfinite = len(train) + len(valid) - len(finite_train) - len(finite_valid)
    notes = [
        smoothing_note(curves),
        downsampling_note(len(finite_train), curves["training"]),
        nonfinite_note(num_nonfinite),
    ]
    best = min(finite_valid, key=lambda point: (point[1], point[0]), default=None)
    return _curve_chart(title, curves, y=y, x=x, notes=notes, best=best, events=events, wide=True)


def plot_curve(
    points: Points,
    *,
    title: str,
    y: str,
    name: str = "",
    events: Sequence[Event] = (),
    log: bool = True,
    noisy: bool = False,
    wide: bool = False,
) -> Chart | Note:
    """Return a chart of one number over steps.

    Args:
        points: the values
        title: heading of the chart
        y: title of the value axis
        name: name of the curve, which selects its style in `CURVE_STYLES`
        events: spikes and divergences to mark
        log: whether the axis may be log; see `log_ticks`
        noisy: whether to draw a moving average on top of the raw values
        wide: whether the chart spans the full width of the page
    """
    finite, name = finite_points(points), "training" if noisy else name or title
    curves: dict[str, Points] = {name: downsample(finite)}
    if noisy:
        curves = _add_smoothed(curves, finite)
    notes = [
        smoothing_note(curves),
        downsampling_note(len(finite), curves[name]),
        nonfinite_note(len(points) - len(finite)),
    ]
    return _curve_chart(title, curves, y=y, notes=notes, events=events, log=log, wide=wide)


def _curve_chart(
    title: str,
    curves: Mapping[str, Points],
    *,
    y: str,
    notes: Sequence[str],
    x: str = "step",
    best: tuple[float, float] | None = None,
    events: Sequence[Event] = (),
    log: bool = True,
    wide: bool = False,
) -> Chart | Note:
    ticks = log_ticks(value for points in curves.values() for _, value in points) if log else []
    values: list[dict[str, Any]] = [
        {"step": step, "value": round_significant(value), "curve": name}
        for name, points in curves.items()
        for step, value in points
        if not ticks or value > 0
    ]
    if not values:
        return empty_chart_note(title, 0)
    num_nonpositive = (
        sum(value <= 0 for points in curves.values() for _, value in points) if ticks else 0
    )
    styles = {name: CURVE_STYLES.get(name, DEFAULT_CURVE_STYLE) for name in curves if curves[name]}
    if SMOOTHED_LABEL not in styles and "training" in styles:
        styles["training"] = DEFAULT_CURVE_STYLE  # thin only below a smoothed curve
    distinct = {row["value"] for row in values}
    y_axis = value_axis(y, ticks, only=distinct.pop() if len(distinct) == 1 else None)
    x_axis, color = step_axis().title(x), _curve_color(styles)
    base = alt.Chart(named_data(VALUES))
    lines = [
        base.transform_filter(alt.datum.curve == name)
        .mark_line(strokeWidth=width, opacity=opacity, aria=False, point=point_marks(curves[name]))
        .encode(x=x_axis, y=y_axis, color=color)
        for name, (_, width, opacity) in styles.items()
    ]
    tooltip = [alt.Tooltip("step:Q", title=x, format=","), alt.Tooltip("value:Q", title=y)]
    tooltip += [alt.Tooltip("curve:N")] if len(styles) > 1 else []
    hover = hover_layer(base, tooltip, y=y_axis, x=x_axis)
    middle = (min(row["step"] for row in values) + max(row["step"] for row in values)) / 2
    best_marks = _best_marks(x_axis, y_axis, left=best[0] > middle) if best else []
    best_data = {BEST: [_best_row(*best)]} if best else {}
    return assemble_chart(
        title,
        [*event_marks(events, middle), *lines, *best_marks, hover],
        notes=[*notes, nonpositive_note(num_nonpositive)],
        values={VALUES: values, **best_data, **event_data(events)},
        wide=wide,
    )


def _curve_color(styles: Mapping[str, tuple[str, float, float]]) -> alt.Color:
    """Return the color encoding of curves; the smoothed one shares the legend entry of the raw."""
    in_legend = [name for name in styles if name != SMOOTHED_LABEL]
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3, symbolOpacity=1, values=in_legend)
    return alt.Color(
        "curve:N",
        title=None,
        scale=alt.Scale(
            domain=list(styles), range=[f"var(--{color})" for color, _, _ in styles.values()]
        ),
        legend=legend if len(in_legend) > 1 else None,
    )


def _best_marks(x: alt.X, y: alt.Y, *, left: bool) -> list[alt.Chart]:
    """Return a diamond and its label, which is outlined to stay readable on top of lines."""
    base = alt.Chart(named_data(BEST)).encode(x=x, y=y)
    text: dict[str, Any] = {"dy": -13, "align": "right" if left else "left", "fontWeight": 600}
    outline: dict[str, Any] = {"stroke": "var(--paper)", "strokeWidth": 4, "color": "var(--paper)"}
    return [
        base.mark_point(shape="diamond", size=110, filled=True, opacity=1, color="var(--orange)"),
        base.mark_text(**text, **outline).encode(text="label:N"),
        base.mark_text(**text, color="var(--orange)").encode(text="label:N"),
    ]


def _best_row(step: float, value: float) -> dict[str, Any]:
    label = f"best {value:.4g} at {step:,}"
    return {"step": step, "value": round_significant(value), "label": label}


def _add_smoothed(curves: dict[str, Points], points: Points) -> dict[str, Points]:
    if len(points) < MIN_POINTS_TO_SMOOTH:
        return curves
    return curves | {SMOOTHED_LABEL: evenly_spaced(moving_average(points), MAX_POINTS // 4)}


def point_marks(points: Sequence[Any], max_points: int = MAX_MARKED_POINTS) -> Any:
    """Return the point option of `mark_line`: marks if there are at most `max_points`."""
    return {"size": 22, "aria": False} if len(points) <= max_points else False
