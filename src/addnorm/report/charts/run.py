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
    AT_SITE,
    VALUES,
    Event,
    at_step,
    data,
    depth,
    event_data,
    event_marks,
    finished,
    hover,
    log_ticks,
    mixed,
    of_value,
)
from addnorm.report.downsample import MOST_POINTS, Points, finite, smooth, spread, thin
from addnorm.report.html.notes import (
    SMOOTHED,
    not_above_zero,
    not_finite,
    nothing,
    thinned,
    told_smoothed,
)
from addnorm.report.html.page import Chart, Note

LOSS = "loss (nats)"
MOST_CELLS, MOST_LINES, MOST_TICKS = 2400, 48, 12
LOOKS = {
    "training": ("blue", 0.9, 0.45),
    SMOOTHED: ("blue", 2.4, 1.0),
    "validation": ("orange", 2.0, 1.0),
}
"""Colour, width and opacity of curves that have a look of their own."""
PLAIN = ("blue", 1.6, 1.0)
FEW = 30
"""Points of a curve up to which each is marked."""


def loss(train: Points, valid: Points, *, title: str, events: Sequence[Event] = ()) -> Chart | Note:
    """Training loss, thin as it is and thick smoothed, and validation loss with its best."""
    raw, checked = finite(train), finite(valid)
    drawn = _smoothed({"training": thin(raw)}, raw) | {"validation": thin(checked)}
    left_out = len(train) + len(valid) - len(raw) - len(checked)
    notes = [told_smoothed(drawn), thinned(len(raw), drawn["training"]), not_finite(left_out)]
    best = min(checked, key=lambda point: (point[1], point[0]), default=None)
    return _curves(title, drawn, y=LOSS, notes=notes, best=best, events=events, wide=True)


def curve(
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
    good, name = finite(points), "training" if noisy else name or title
    drawn: dict[str, Points] = {name: thin(good)}
    if noisy:
        drawn = _smoothed(drawn, good)
    left_out = len(points) - len(good)
    notes = [told_smoothed(drawn), thinned(len(good), drawn[name]), not_finite(left_out)]
    return _curves(title, drawn, y=y, notes=notes, events=events, log=log, wide=wide)


def over_steps(rows: Sequence[Row], *, title: str, y: str) -> Chart | Note:
    """One line a site over steps, coloured from the first site to the last."""
    good = _finite(rows)
    if not good:
        return nothing(title, len(rows))
    steps, sites, kept, notes = _sampled(good)
    ticks = log_ticks(row["value"] for row in kept)
    base = alt.Chart(data(VALUES)).transform_calculate(where=_look_up(good))
    lines = base.mark_line(strokeWidth=1.3, opacity=0.9, aria=False, point=_few(steps, 3)).encode(
        x=at_step(), y=of_value(y, ticks), detail="site:O", color=depth(sites)
    )
    near = hover(base, [*AT_SITE, alt.Tooltip("value:Q", title=y)], y=of_value(y, ticks))
    notes = [*notes, *_left_out(rows, good, kept, ticks)]
    return finished(title, [lines, near], notes=notes, values={VALUES: _cells(kept, ticks)})


def over_depth(
    rows: Sequence[Row], *, title: str, y: str, lines: str = "step", moments: int = 5
) -> Chart | Note:
    """The sites from first to last, a line for each of a few steps, or for each stream.

    lines: what a line is for, a whole number of every row. A single stream needs no legend.
    """
    good = _finite(rows)
    if not good:
        return nothing(title, len(rows))
    each = spread(sorted({row[lines] for row in good}), moments)
    kept = [row for row in good if row[lines] in set(each)]
    ticks = log_ticks(row["value"] for row in kept)
    base = alt.Chart(data(VALUES)).transform_calculate(where=_look_up(good))
    colours = alt.Scale(domain=each, range=[mixed(n, len(each)) for n in range(len(each))])
    needed = lines == "step" or len(each) > 1
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3) if needed else None
    x = alt.X(
        "site:Q",
        title="site, from the first to the last",
        axis=alt.Axis(tickMinStep=1, format="d", labelOverlap=True),
        scale=alt.Scale(nice=False, zero=False, padding=8),
    )
    drawn = base.mark_line(strokeWidth=1.6, aria=False, point={"size": 18, "aria": False}).encode(
        x=x,
        y=of_value(y, ticks),
        color=alt.Color(f"{lines}:O", title=lines, sort=each, legend=legend, scale=colours),
    )
    told = [*AT_SITE[:1], alt.Tooltip(f"{lines}:Q"), alt.Tooltip("value:Q", title=y)]
    near = hover(base, told, y=of_value(y, ticks), x=x)
    notes = _left_out(rows, good, kept, ticks)
    return finished(title, [drawn, near], notes=notes, values={VALUES: _cells(kept, ticks, lines)})


def heat(rows: Sequence[Row], *, title: str, y: str) -> Chart | Note:
    """Sites by steps, coloured by value; on a log scale where the values are wide apart."""
    good = _finite(rows)
    if not good:
        return nothing(title, len(rows))
    steps, sites, kept, notes = _sampled(good)
    log = bool(log_ticks(row["value"] for row in kept))
    gaps = [after - before for before, after in pairwise(steps)]
    ends = dict(zip(steps, [*steps[1:], steps[-1] + (median(gaps) if gaps else 1)], strict=True))
    values = [cell | {"end": ends[cell["step"]]} for cell in _cells(kept, log)]
    labels = sites[:: -(-len(sites) // MOST_TICKS)]
    colour = alt.Color(
        "value:Q",
        title=f"{y}, log" if log else y,
        scale=alt.Scale(scheme="viridis", type="log" if log else "linear"),
        legend=alt.Legend(gradientLength=150, tickCount=3, format="~g"),
    )
    cells = (
        alt.Chart(data(VALUES))
        .transform_calculate(where=_look_up(good))
        .mark_rect(aria=False)
        .encode(
            x=at_step(padding=0),
            x2="end:Q",
            y=alt.Y("site:O", title="site", sort="descending", axis=alt.Axis(values=labels)),
            color=colour,
            tooltip=[*AT_SITE, alt.Tooltip("value:Q", title=y)],
        )
    )
    notes = [*notes, *_left_out(rows, good, kept, log)]
    return finished(title, [cells], notes=notes, values={VALUES: values})


def _curves(
    title: str,
    drawn: Mapping[str, Points],
    *,
    y: str,
    notes: Sequence[str],
    best: tuple[float, float] | None = None,
    events: Sequence[Event] = (),
    log: bool = True,
    wide: bool = False,
) -> Chart | Note:
    """Named curves in one chart, with what happened marked."""
    ticks = log_ticks(value for points in drawn.values() for _, value in points) if log else []
    values: list[dict[str, Any]] = [
        {"step": step, "value": _short(value), "curve": name}
        for name, points in drawn.items()
        for step, value in points
        if not ticks or value > 0
    ]
    if not values:
        return nothing(title, 0)
    below = sum(value <= 0 for points in drawn.values() for _, value in points) if ticks else 0
    used = [name for name in drawn if drawn[name]]
    looks = {name: LOOKS.get(name, PLAIN) for name in used}
    if SMOOTHED not in used and "training" in used:
        looks["training"] = PLAIN  # thin only where a thick one tells the same
    listed = [name for name in used if name != SMOOTHED]
    legend = alt.Legend(symbolType="stroke", symbolStrokeWidth=3, symbolOpacity=1, values=listed)
    colour = alt.Color(
        "curve:N",
        title=None,
        scale=alt.Scale(domain=used, range=[f"var(--{name})" for name, _, _ in looks.values()]),
        legend=legend if len(listed) > 1 else None,
    )
    base = alt.Chart(data(VALUES))
    lines = [
        base.transform_filter(alt.datum.curve == name)
        .mark_line(strokeWidth=thick, opacity=opacity, aria=False, point=_few(drawn[name]))
        .encode(x=at_step(), y=of_value(y, ticks), color=colour)
        for name, (_, thick, opacity) in looks.items()
    ]
    tooltip = [alt.Tooltip("step:Q", format=","), alt.Tooltip("value:Q", title=y)]
    tooltip += [alt.Tooltip("curve:N")] if len(used) > 1 else []
    near = hover(base, tooltip, y=of_value(y, ticks))
    middle = (min(row["step"] for row in values) + max(row["step"] for row in values)) / 2
    marks = _best(of_value(y, ticks), left=best[0] > middle) if best else []
    told = {"best": [_told_best(*best)]} if best else {}
    return finished(
        title,
        [*event_marks(events, middle), *lines, *marks, near],
        notes=[*notes, not_above_zero(below)],
        values={VALUES: values, **told, **event_data(events)},
        wide=wide,
    )


def _best(y: alt.Y, *, left: bool) -> list[alt.Chart]:
    """A diamond, and its words on a ground that keeps them readable over lines."""
    place = alt.Chart(data("best")).encode(x=at_step(), y=y)
    look: dict[str, Any] = {"dy": -13, "align": "right" if left else "left", "fontWeight": 600}
    ground: dict[str, Any] = {"stroke": "var(--paper)", "strokeWidth": 4, "color": "var(--paper)"}
    return [
        place.mark_point(shape="diamond", size=110, filled=True, opacity=1, color="var(--orange)"),
        place.mark_text(**look, **ground).encode(text="told:N"),
        place.mark_text(**look, color="var(--orange)").encode(text="told:N"),
    ]


def _told_best(step: float, value: float) -> dict[str, Any]:
    return {"step": step, "value": _short(value), "told": f"best {value:.4g} at {step:,}"}


def _smoothed(drawn: dict[str, Points], points: Points) -> dict[str, Points]:
    """With a smooth curve, where there are enough points for one."""
    if len(points) < 80:
        return drawn
    return drawn | {SMOOTHED: spread(smooth(points), MOST_POINTS // 4)}


def _finite(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if math.isfinite(row["value"])]


def _sampled(rows: Sequence[Row]) -> tuple[list[int], list[int], list[Row], list[str]]:
    """Steps and sites that are drawn, their rows, and what to say of those that are not."""
    every_step, every_site = (sorted({row[name] for row in rows}) for name in ("step", "site"))
    sites = spread(every_site, MOST_LINES)
    steps = spread(every_step, max(20, min(120, MOST_CELLS // len(sites))))
    wanted, chosen = set(steps), set(sites)
    kept = [row for row in rows if row["step"] in wanted and row["site"] in chosen]
    notes = []
    for drawn, all_, what in ((steps, every_step, "measured steps"), (sites, every_site, "sites")):
        if len(drawn) < len(all_):
            notes.append(f"{len(drawn):,} of {len(all_):,} {what} are drawn.")
    return steps, sites, kept, notes


def _left_out(
    rows: Sequence[Row], good: Sequence[Row], kept: Sequence[Row], log: object
) -> list[str]:
    below = sum(row["value"] <= 0 for row in kept) if log else 0
    return [not_finite(len(rows) - len(good)), not_above_zero(below)]


def _cells(rows: Sequence[Row], log: object, lines: str = "step") -> list[dict[str, Any]]:
    return [
        {lines: row[lines], "site": row["site"], "value": _short(row["value"])}
        for row in rows
        if not log or row["value"] > 0
    ]


def _look_up(rows: Sequence[Row]) -> str:
    """An expression that names a site, `5: layer 1, cross`: once a chart, not with each value."""
    names = {}
    for row in rows:
        layer = f"layer {row['layer']}" if row.get("layer") is not None else ""
        told = ", ".join(part for part in (layer, str(row.get("kind") or "")) if part)
        names[str(row["site"])] = f"{row['site']}: {told}" if told else str(row["site"])
    return f"({json.dumps(names)})['' + datum.site]"


def _few(points: Sequence[Any], most: int = FEW) -> Any:
    return {"size": 22, "aria": False} if len(points) <= most else False


def _short(value: float) -> float:
    """Five digits: more is not seen, and a page should be small."""
    return float(f"{value:.5g}")
