"""Losses over steps: seeds thin, their mean thick, an arm a colour."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from addnorm.report.charts.base import TALL, at_step, data, hover
from addnorm.report.comparison.cell_curves import MOST_POINTS, Trace, mean_over_seeds
from addnorm.report.comparison.curves import (
    CURVES,
    Groups,
    Rows,
    Shown,
    colour_of,
    dashes,
    finished,
    flat,
    short,
    symbols,
    told_setting,
    values_axis,
)
from addnorm.report.downsample import Points, smooth, spread
from addnorm.report.html.page import Chart
from addnorm.report.theme import Look

LOSS = "loss (nats)"
ENDS, BASELINE = "ends", "baseline"
ENOUGH_TO_SMOOTH = 80
SPLITS = {"train": "Training loss", "valid": "Validation loss"}


def loss_chart(
    split: str, groups: Groups, shown: Shown, *, arms: Sequence[Look], baseline: float | None
) -> Chart:
    """Losses over steps: seeds thin, their mean thick, the baseline dashed, bad ends crossed."""
    rows, ends = _curves(split, groups, shown)
    y = values_axis(LOSS)
    base = flat(alt.Chart(data(CURVES)), "step")
    point: Any = {"size": 34, "aria": False} if split == "valid" else False
    colour, more = colour_of(arms), symbols(arms) if split == "valid" else dashes(arms)
    seeds = (
        base.transform_filter("datum.seed != 'mean'")
        .mark_line(style="seeds", strokeWidth=1, opacity=0.45, aria=False)
        .encode(x=at_step(), y=y, color=colour, detail="seed:N", **dashes(arms))
    )
    means = base.transform_filter("datum.seed == 'mean'")
    thick = means.mark_line(style="means", strokeWidth=2.6, aria=False).encode(
        x=at_step(), y=y, color=colour, **dashes(arms)
    )
    rule, *words = _baseline(baseline, y) or [None]
    layers: list[Any] = [*([rule] if rule else []), seeds, thick]
    if point:
        layers.append(
            means.mark_point(style="means", filled=True, size=46, opacity=1, aria=False).encode(
                x=at_step(), y=y, color=colour, **more
            )
        )
    tips = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("seed:N", title="seed"),
        alt.Tooltip("at:N", title="at"),
        alt.Tooltip("step:Q", format=","),
        alt.Tooltip("value:Q", title="loss", format=".4g"),
    ]
    layers += [*words, _bad_ends(y, colour), hover(base, tips, y=y, fields=("arm", "seed", "step"))]
    told = [{"value": baseline, "told": f"baseline {baseline:.3g}"}] if baseline else []
    values = {CURVES: rows, ENDS: ends, BASELINE: told}
    return finished(SPLITS[split], layers, values, height=TALL)


def _curves(split: str, groups: Groups, shown: Shown) -> tuple[Rows, Rows]:
    rows: Rows = []
    ends: Rows = []
    for place, traces in groups.items():
        if place not in shown:
            continue
        arm, setting = place
        about = {"arm": arm, "show": shown[place], "at": told_setting(setting)}
        for trace in traces:
            points = trace.train if split == "train" else trace.valid
            if not points:
                continue
            seed = str(trace.judged.cell.seed) if len(traces) > 1 else "mean"
            rows.append({**about, "seed": seed, **_lists(points)})
            if trace.judged.state in ("diverged", "crashed"):
                step, value = points[-1]
                told = f"{trace.judged.state}, last value at step {step:,}"
                ends.append({**about, "step": [step], "value": [short(value)], "told": told})
        if len(traces) > 1:
            rows += [{**about, "seed": "mean", **_lists(mean)} for mean in _mean(split, traces)]
    return rows, ends


def _mean(split: str, traces: Sequence[Trace]) -> list[Points]:
    """The mean over seeds, smoothed if it has many points; none if the seeds share no step."""
    mean = mean_over_seeds([t.whole if split == "train" else t.valid for t in traces])
    if split == "train" and len(mean) >= ENOUGH_TO_SMOOTH:
        mean = spread(smooth(mean), max(30, min(MOST_POINTS, len(traces[0].train)) // 2))
    return [mean] if mean else []


def _lists(points: Points) -> dict[str, list[float]]:
    return {"step": [step for step, _ in points], "value": [short(value) for _, value in points]}


def _baseline(baseline: float | None, y: alt.Y) -> list[Any]:
    """A dashed line, and its words on a ground that keeps them readable over curves."""
    if not baseline:
        return []
    base = alt.Chart(data(BASELINE)).encode(y=y)
    words: dict[str, Any] = {
        "align": "right",
        "dx": -6,
        "dy": -9,
        "fontSize": 12,
        "fontWeight": 600,
    }
    ground: dict[str, Any] = {"stroke": "var(--paper)", "strokeWidth": 4, "color": "var(--paper)"}
    place: dict[str, Any] = {"text": "told:N", "x": alt.value("width")}
    return [
        base.mark_rule(strokeDash=[6, 4], color="var(--quiet)", strokeWidth=1.4),
        base.mark_text(**words, **ground).encode(**place),
        base.mark_text(**words, color="var(--quiet)").encode(**place),
    ]


def _bad_ends(y: alt.Y, colour: alt.Color) -> alt.Chart:
    """A cross where a training broke off."""
    return (
        flat(alt.Chart(data(ENDS)), "step")
        .mark_point(shape="M-1-1L1 1M-1 1L1-1", size=110, strokeWidth=2.4, opacity=1, filled=False)
        .encode(
            x=at_step(),
            y=y,
            color=colour,
            tooltip=[alt.Tooltip("arm:N"), alt.Tooltip("at:N"), alt.Tooltip("told:N", title="end")],
        )
    )
