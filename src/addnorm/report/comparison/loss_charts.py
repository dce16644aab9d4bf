"""Losses over steps: seeds thin, their mean thick, an arm a colour."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from addnorm.report.charts.base import TALL_CHART_HEIGHT, hover_layer, named_data, step_axis
from addnorm.report.comparison.cell_curves import MAX_CELL_POINTS, CellCurves, mean_over_seeds
from addnorm.report.comparison.curves import (
    CURVES,
    Groups,
    Rows,
    SelectionKeys,
    assemble_comparison_chart,
    color_encoding,
    dash_encoding,
    flatten_lists,
    round_significant,
    setting_label,
    switchable_value_axis,
    symbol_encoding,
)
from addnorm.report.downsample import Points, evenly_spaced, moving_average
from addnorm.report.html.page import Chart
from addnorm.report.theme import ArmStyle

LOSS_AXIS_TITLE = "loss (nats)"
ENDS, BASELINE = "ends", "baseline"
MIN_POINTS_TO_SMOOTH = 80
SPLITS = {"train": "Training loss", "valid": "Validation loss"}


def loss_chart(
    split: str,
    groups: Groups,
    selection_keys: SelectionKeys,
    *,
    arms: Sequence[ArmStyle],
    baseline: float | None,
) -> Chart:
    """Losses over steps: seeds thin, their mean thick, the baseline dashed, bad ends crossed."""
    rows, ends = _curve_rows(split, groups, selection_keys)
    y = switchable_value_axis(LOSS_AXIS_TITLE)
    base = flatten_lists(alt.Chart(named_data(CURVES)), "step")
    point: Any = {"size": 34, "aria": False} if split == "valid" else False
    colour, more = (
        color_encoding(arms),
        symbol_encoding(arms) if split == "valid" else dash_encoding(arms),
    )
    seeds = (
        base.transform_filter("datum.seed != 'mean'")
        .mark_line(style="seeds", strokeWidth=1, opacity=0.45, aria=False)
        .encode(x=step_axis(), y=y, color=colour, detail="seed:N", **dash_encoding(arms))
    )
    means = base.transform_filter("datum.seed == 'mean'")
    thick = means.mark_line(style="means", strokeWidth=2.6, aria=False).encode(
        x=step_axis(), y=y, color=colour, **dash_encoding(arms)
    )
    rule, *words = _baseline(baseline, y) or [None]
    layers: list[Any] = [*([rule] if rule else []), seeds, thick]
    if point:
        layers.append(
            means.mark_point(style="means", filled=True, size=46, opacity=1, aria=False).encode(
                x=step_axis(), y=y, color=colour, **more
            )
        )
    tips = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("seed:N", title="seed"),
        alt.Tooltip("at:N", title="at"),
        alt.Tooltip("step:Q", format=","),
        alt.Tooltip("value:Q", title="loss", format=".4g"),
    ]
    layers += [
        *words,
        _failure_layer(y, colour),
        hover_layer(base, tips, y=y, fields=("arm", "seed", "step")),
    ]
    told = [{"value": baseline, "told": f"baseline {baseline:.3g}"}] if baseline else []
    values = {CURVES: rows, ENDS: ends, BASELINE: told}
    return assemble_comparison_chart(SPLITS[split], layers, values, height=TALL_CHART_HEIGHT)


def _curve_rows(split: str, groups: Groups, selection_keys: SelectionKeys) -> tuple[Rows, Rows]:
    rows: Rows = []
    ends: Rows = []
    for place, traces in groups.items():
        if place not in selection_keys:
            continue
        arm, setting = place
        about = {"arm": arm, "show": selection_keys[place], "at": setting_label(setting)}
        for trace in traces:
            points = trace.train if split == "train" else trace.valid
            if not points:
                continue
            seed = str(trace.outcome.cell.seed) if len(traces) > 1 else "mean"
            rows.append({**about, "seed": seed, **_to_columns(points)})
            if trace.outcome.state in ("diverged", "crashed"):
                step, value = points[-1]
                told = f"{trace.outcome.state}, last value at step {step:,}"
                ends.append(
                    {**about, "step": [step], "value": [round_significant(value)], "told": told}
                )
        if len(traces) > 1:
            rows += [
                {**about, "seed": "mean", **_to_columns(mean)} for mean in _mean(split, traces)
            ]
    return rows, ends


def _mean(split: str, cells: Sequence[CellCurves]) -> list[Points]:
    """The mean over seeds, smoothed if it has many points; none if the seeds share no step."""
    mean = mean_over_seeds([t.full_train if split == "train" else t.valid for t in cells])
    if split == "train" and len(mean) >= MIN_POINTS_TO_SMOOTH:
        mean = evenly_spaced(
            moving_average(mean), max(30, min(MAX_CELL_POINTS, len(cells[0].train)) // 2)
        )
    return [mean] if mean else []


def _to_columns(points: Points) -> dict[str, list[float]]:
    return {
        "step": [step for step, _ in points],
        "value": [round_significant(value) for _, value in points],
    }


def _baseline(baseline: float | None, y: alt.Y) -> list[Any]:
    """A dashed line, and its words on a ground that keeps them readable over curves."""
    if not baseline:
        return []
    base = alt.Chart(named_data(BASELINE)).encode(y=y)
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


def _failure_layer(y: alt.Y, color: alt.Color) -> alt.Chart:
    """A cross where a training broke off."""
    return (
        flatten_lists(alt.Chart(named_data(ENDS)), "step")
        .mark_point(shape="M-1-1L1 1M-1 1L1-1", size=110, strokeWidth=2.4, opacity=1, filled=False)
        .encode(
            x=step_axis(),
            y=y,
            color=color,
            tooltip=[alt.Tooltip("arm:N"), alt.Tooltip("at:N"), alt.Tooltip("told:N", title="end")],
        )
    )
