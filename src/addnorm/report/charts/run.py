"""Rows to charts: curves over steps, lines and heat maps over sites.

Numbers are thinned before they are drawn, and the chart says so; what is not finite is left out and
counted. Nothing to draw gives a note instead of an empty chart. Colours are names of the page's CSS
variables, so that one chart serves light and dark.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import altair as alt

from addnorm.core.rows import Row
from addnorm.report.charts.base import (
    SITE_TOOLTIPS,
    VALUES,
    Event,
    assemble_chart,
    depth_color,
    event_data,
    event_marks,
    hover_layer,
    interpolate_color,
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
from addnorm.report.html.notes import (
    SMOOTHED_LABEL,
    downsampling_note,
    empty_chart_note,
    nonfinite_note,
    nonpositive_note,
    smoothing_note,
)
from addnorm.report.html.page import Chart, Note

LOSS_AXIS_TITLE = "loss (nats)"
MAX_CELLS, MAX_LINES, MAX_TICKS = 2400, 48, 12
CURVE_STYLES = {
    "training": ("blue", 0.9, 0.45),
    SMOOTHED_LABEL: ("blue", 2.4, 1.0),
    "validation": ("orange", 2.0, 1.0),
}
"""Colour, width and opacity of curves that have a look of their own."""
DEFAULT_CURVE_STYLE = ("blue", 1.6, 1.0)
MAX_MARKED_POINTS = 30
"""Points of a curve up to which each is marked."""


def plot_loss(
    train: Points, valid: Points, *, title: str, events: Sequence[Event] = ()
) -> Chart | Note:
    """Training loss, thin as it is and thick smoothed, and validation loss with its best."""
    raw, checked = finite_points(train), finite_points(valid)
    drawn = _add_smoothed({"training": downsample(raw)}, raw) | {"validation": downsample(checked)}
    left_out = len(train) + len(valid) - len(raw) - len(checked)
    notes = [
        smoothing_note(drawn),
        downsampling_note(len(raw), drawn["training"]),
        nonfinite_note(left_out),
    ]
    best = min(checked, key=lambda point: (point[1], point[0]), default=None)
    return _curve_chart(
        title, drawn, y=LOSS_AXIS_TITLE, notes=notes, best=best, events=events, wide=True
    )


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
    """One measured number over steps.

    log: on a log axis, if the values are wide apart. noisy: drawn thin, and smoothed over it.
    """
    good, name = finite_points(points), "training" if noisy else name or title
    drawn: dict[str, Points] = {name: downsample(good)}
    if noisy:
        drawn = _add_smoothed(drawn, good)
    left_out = len(points) - len(good)
    notes = [
        smoothing_note(drawn),
        downsampling_note(len(good), drawn[name]),
        nonfinite_note(left_out),
    ]
    return _curve_chart(title, drawn, y=y, notes=notes, events=events, log=log, wide=wide)


def plot_over_steps(rows: Sequence[Row], *, title: str, y: str) -> Chart | Note:
    """One line a site over steps, coloured from the first site to the last."""
    good = _finite_rows(rows)
    if not good:
        return empty_chart_note(title, len(rows))
    steps, sites, kept, notes = _sample_rows(good)
    ticks = log_ticks(row["value"] for row in kept)
    base = alt.Chart(named_data(VALUES)).transform_calculate(where=_site_name_expression(good))
    lines = base.mark_line(
        strokeWidth=1.3, opacity=0.9, aria=False, point=_point_marks(steps, 3)
    ).encode(x=step_axis(), y=value_axis(y, ticks), detail="site:O", color=depth_color(sites))
    near = hover_layer(
        base, [*SITE_TOOLTIPS, alt.Tooltip("value:Q", title=y)], y=value_axis(y, ticks)
    )
    notes = [*notes, *_omission_notes(rows, good, kept, ticks)]
    return assemble_chart(
        title, [lines, near], notes=notes, values={VALUES: _chart_rows(kept, ticks)}
    )


def plot_over_depth(
    rows: Sequence[Row], *, title: str, y: str, line_field: str = "step", max_lines: int = 5
) -> Chart | Note:
    """The sites from first to last, a line for each of a few steps, or for each stream.

    lines: what a line is for, a whole number of every row. A single stream needs no legend.
    """
    good = _finite_rows(rows)
    if not good:
        return empty_chart_note(title, len(rows))
    each = evenly_spaced(sorted({row[line_field] for row in good}), max_lines)
    kept = [row for row in good if row[line_field] in set(each)]
    ticks = log_ticks(row["value"] for row in kept)
    base = alt.Chart(named_data(VALUES)).transform_calculate(where=_site_name_expression(good))
    colours = alt.Scale(
        domain=each, range=[interpolate_color(n, len(each)) for n in range(len(each))]
    )
    needed = line_field == "step" or len(each) > 1
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3) if needed else None
    x = alt.X(
        "site:Q",
        title="site, from the first to the last",
        axis=alt.Axis(tickMinStep=1, format="d", labelOverlap=True),
        scale=alt.Scale(nice=False, zero=False, padding=8),
    )
    drawn = base.mark_line(strokeWidth=1.6, aria=False, point={"size": 18, "aria": False}).encode(
        x=x,
        y=value_axis(y, ticks),
        color=alt.Color(
            f"{line_field}:O", title=line_field, sort=each, legend=legend, scale=colours
        ),
    )
    told = [*SITE_TOOLTIPS[:1], alt.Tooltip(f"{line_field}:Q"), alt.Tooltip("value:Q", title=y)]
    near = hover_layer(base, told, y=value_axis(y, ticks), x=x)
    notes = _omission_notes(rows, good, kept, ticks)
    return assemble_chart(
        title, [drawn, near], notes=notes, values={VALUES: _chart_rows(kept, ticks, line_field)}
    )


def plot_heatmap(rows: Sequence[Row], *, title: str, y: str) -> Chart | Note:
    """Sites by steps, coloured by value; on a log scale where the values are wide apart."""
    good = _finite_rows(rows)
    if not good:
        return empty_chart_note(title, len(rows))
    steps, sites, kept, notes = _sample_rows(good)
    log = bool(log_ticks(row["value"] for row in kept))
    gaps = [after - before for before, after in pairwise(steps)]
    ends = dict(zip(steps, [*steps[1:], steps[-1] + (median(gaps) if gaps else 1)], strict=True))
    values = [cell | {"end": ends[cell["step"]]} for cell in _chart_rows(kept, log)]
    labels = sites[:: -(-len(sites) // MAX_TICKS)]
    colour = alt.Color(
        "value:Q",
        title=f"{y}, log" if log else y,
        scale=alt.Scale(scheme="viridis", type="log" if log else "linear"),
        legend=alt.Legend(gradientLength=150, tickCount=3, format="~g"),
    )
    cells = (
        alt.Chart(named_data(VALUES))
        .transform_calculate(where=_site_name_expression(good))
        .mark_rect(aria=False)
        .encode(
            x=step_axis(padding=0),
            x2="end:Q",
            y=alt.Y("site:O", title="site", sort="descending", axis=alt.Axis(values=labels)),
            color=colour,
            tooltip=[*SITE_TOOLTIPS, alt.Tooltip("value:Q", title=y)],
        )
    )
    notes = [*notes, *_omission_notes(rows, good, kept, log)]
    return assemble_chart(title, [cells], notes=notes, values={VALUES: values})


def _curve_chart(
    title: str,
    curves: Mapping[str, Points],
    *,
    y: str,
    notes: Sequence[str],
    best: tuple[float, float] | None = None,
    events: Sequence[Event] = (),
    log: bool = True,
    wide: bool = False,
) -> Chart | Note:
    """Named curves in one chart, with what happened marked."""
    ticks = log_ticks(value for points in curves.values() for _, value in points) if log else []
    values: list[dict[str, Any]] = [
        {"step": step, "value": _round_significant(value), "curve": name}
        for name, points in curves.items()
        for step, value in points
        if not ticks or value > 0
    ]
    if not values:
        return empty_chart_note(title, 0)
    below = sum(value <= 0 for points in curves.values() for _, value in points) if ticks else 0
    used = [name for name in curves if curves[name]]
    looks = {name: CURVE_STYLES.get(name, DEFAULT_CURVE_STYLE) for name in used}
    if SMOOTHED_LABEL not in used and "training" in used:
        looks["training"] = DEFAULT_CURVE_STYLE  # thin only where a thick one tells the same
    listed = [name for name in used if name != SMOOTHED_LABEL]
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3, symbolOpacity=1, values=listed)
    colour = alt.Color(
        "curve:N",
        title=None,
        scale=alt.Scale(domain=used, range=[f"var(--{name})" for name, _, _ in looks.values()]),
        legend=legend if len(listed) > 1 else None,
    )
    base = alt.Chart(named_data(VALUES))
    lines = [
        base.transform_filter(alt.datum.curve == name)
        .mark_line(strokeWidth=thick, opacity=opacity, aria=False, point=_point_marks(curves[name]))
        .encode(x=step_axis(), y=value_axis(y, ticks), color=colour)
        for name, (_, thick, opacity) in looks.items()
    ]
    tooltip = [alt.Tooltip("step:Q", format=","), alt.Tooltip("value:Q", title=y)]
    tooltip += [alt.Tooltip("curve:N")] if len(used) > 1 else []
    near = hover_layer(base, tooltip, y=value_axis(y, ticks))
    middle = (min(row["step"] for row in values) + max(row["step"] for row in values)) / 2
    marks = _best_marks(value_axis(y, ticks), left=best[0] > middle) if best else []
    told = {"best": [_best_row(*best)]} if best else {}
    return assemble_chart(
        title,
        [*event_marks(events, middle), *lines, *marks, near],
        notes=[*notes, nonpositive_note(below)],
        values={VALUES: values, **told, **event_data(events)},
        wide=wide,
    )


def _best_marks(y: alt.Y, *, left: bool) -> list[alt.Chart]:
    """A diamond, and its words on a ground that keeps them readable over lines."""
    place = alt.Chart(named_data("best")).encode(x=step_axis(), y=y)
    look: dict[str, Any] = {"dy": -13, "align": "right" if left else "left", "fontWeight": 600}
    ground: dict[str, Any] = {"stroke": "var(--paper)", "strokeWidth": 4, "color": "var(--paper)"}
    return [
        place.mark_point(shape="diamond", size=110, filled=True, opacity=1, color="var(--orange)"),
        place.mark_text(**look, **ground).encode(text="told:N"),
        place.mark_text(**look, color="var(--orange)").encode(text="told:N"),
    ]


def _best_row(step: float, value: float) -> dict[str, Any]:
    return {
        "step": step,
        "value": _round_significant(value),
        "told": f"best {value:.4g} at {step:,}",
    }


def _add_smoothed(curves: dict[str, Points], points: Points) -> dict[str, Points]:
    """With a smooth curve, where there are enough points for one."""
    if len(points) < 80:
        return curves
    return curves | {SMOOTHED_LABEL: evenly_spaced(moving_average(points), MAX_POINTS // 4)}


def _finite_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if math.isfinite(row["value"])]


def _sample_rows(rows: Sequence[Row]) -> tuple[list[int], list[int], list[Row], list[str]]:
    """Steps and sites that are drawn, their rows, and what to say of those that are not."""
    every_step, every_site = (sorted({row[name] for row in rows}) for name in ("step", "site"))
    sites = evenly_spaced(every_site, MAX_LINES)
    steps = evenly_spaced(every_step, max(20, min(120, MAX_CELLS // len(sites))))
    wanted, chosen = set(steps), set(sites)
    kept = [row for row in rows if row["step"] in wanted and row["site"] in chosen]
    notes = []
    for drawn, all_, what in ((steps, every_step, "measured steps"), (sites, every_site, "sites")):
        if len(drawn) < len(all_):
            notes.append(f"{len(drawn):,} of {len(all_):,} {what} are drawn.")
    return steps, sites, kept, notes


def _omission_notes(
    rows: Sequence[Row], good: Sequence[Row], kept: Sequence[Row], log: object
) -> list[str]:
    below = sum(row["value"] <= 0 for row in kept) if log else 0
    return [nonfinite_note(len(rows) - len(good)), nonpositive_note(below)]


def _chart_rows(rows: Sequence[Row], log: object, line_field: str = "step") -> list[dict[str, Any]]:
    return [
        {
            line_field: row[line_field],
            "site": row["site"],
            "value": _round_significant(row["value"]),
        }
        for row in rows
        if not log or row["value"] > 0
    ]


def _site_name_expression(rows: Sequence[Row]) -> str:
    """An expression that names a site, `5: layer 1, cross`: once a chart, not with each value."""
    names = {}
    for row in rows:
        layer = f"layer {row['layer']}" if row.get("layer") is not None else ""
        told = ", ".join(part for part in (layer, str(row.get("kind") or "")) if part)
        names[str(row["site"])] = f"{row['site']}: {told}" if told else str(row["site"])
    return f"({json.dumps(names)})['' + datum.site]"


def _point_marks(points: Sequence[Any], max_points: int = MAX_MARKED_POINTS) -> Any:
    return {"size": 22, "aria": False} if len(points) <= max_points else False


def _round_significant(value: float) -> float:
    """Five digits: more is not seen, and a page should be small."""
    return float(f"{value:.5g}")
