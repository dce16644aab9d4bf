"""Charts of training and validation loss over steps, one color for each arm."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from addnorm.report.charts.arm_encodings import (
    color_encoding,
    dash_encoding,
    switchable_value_axis,
    symbol_encoding,
)
from addnorm.report.charts.base import TALL_CHART_HEIGHT, hover_layer, named_data, step_axis
from addnorm.report.charts.curves import LOSS_AXIS_TITLE, MIN_POINTS_TO_SMOOTH
from addnorm.report.comparison.cell_curves import MAX_CELL_POINTS, CellCurves, mean_over_seeds
from addnorm.report.comparison.chart_base import (
    CURVES,
    VALUE_DIGITS,
    Groups,
    Rows,
    SelectionKeys,
    assemble_comparison_chart,
    flatten_lists,
    setting_label,
)
from addnorm.report.downsample import Points, evenly_spaced, moving_average
from addnorm.report.format import round_significant
from addnorm.report.html.page import Chart
from addnorm.report.theme import ArmStyle

FAILURES, BASELINE = "failures", "baseline"
"""Names of datasets."""


def plot_losses(
    split: str,
    groups: Groups,
    selection_keys: SelectionKeys,
    *,
    arms: Sequence[ArmStyle],
    baseline: float | None,
    title: str,
    axis_title: str = LOSS_AXIS_TITLE,
) -> Chart:
    """Return the chart of one split.

    Seeds are thin lines, their mean is a thick line, the baseline is dashed, and a cross marks the
    last value of a cell that diverged or crashed.

    Args:
        split: "train", or "valid" for what arms are judged by
        groups: the cells of all seeds by arm and setting
        selection_keys: the selections that include an arm at a setting; others are not drawn
        arms: styles of all arms
        baseline: value of the task's baseline, if known
        title: title of the chart
        axis_title: title of the vertical axis
    """
    rows, failures = _curve_rows(split, groups, selection_keys)
    y = switchable_value_axis(axis_title)
    base = flatten_lists(alt.Chart(named_data(CURVES)), "step")
    color, dash = color_encoding(arms), dash_encoding(arms)
    seeds = (
        base.transform_filter("datum.seed != 'mean'")
        .mark_line(style="seeds", strokeWidth=1, opacity=0.45, aria=False)
        .encode(x=step_axis(), y=y, color=color, detail="seed:N", **dash)
    )
    means = base.transform_filter("datum.seed == 'mean'")
    mean_lines = means.mark_line(style="means", strokeWidth=2.6, aria=False).encode(
        x=step_axis(), y=y, color=color, **dash
    )
    has_baseline = baseline is not None and math.isfinite(baseline)
    baseline_layers = _baseline_layers(y) if has_baseline else []
    layers: list[Any] = [*baseline_layers[:1], seeds, mean_lines]
    if split == "valid":
        mean_points = means.mark_point(
            style="means", filled=True, size=46, opacity=1, aria=False
        ).encode(x=step_axis(), y=y, color=color, **symbol_encoding(arms))
        layers.append(mean_points)
    tooltip = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("seed:N", title="seed"),
        alt.Tooltip("at:N", title="at"),
        alt.Tooltip("step:Q", format=","),
        alt.Tooltip("value:Q", title=axis_title.partition(" (")[0], format=".4g"),
    ]
    layers += [
        *baseline_layers[1:],
        _failure_layer(y, color),
        hover_layer(base, tooltip, y=y, fields=("arm", "seed", "step")),
    ]
    baseline_rows = (
        [{"value": baseline, "label": f"baseline {baseline:.3g}"}] if has_baseline else []
    )
    datasets = {CURVES: rows, FAILURES: failures, BASELINE: baseline_rows}
    return assemble_comparison_chart(title, layers, datasets, height=TALL_CHART_HEIGHT)


def _curve_rows(split: str, groups: Groups, selection_keys: SelectionKeys) -> tuple[Rows, Rows]:
    """Return the curves of seeds and means, and the last values of failed cells."""
    rows: Rows = []
    failures: Rows = []
    for key, cells in groups.items():
        if key not in selection_keys:
            continue
        arm, setting = key
        shared = {"arm": arm, "show": selection_keys[key], "at": setting_label(setting)}
        for cell in cells:
            points = cell.train if split == "train" else cell.valid
            if not points:
                continue
            # A single seed is its own mean, and is drawn as one.
            seed = str(cell.outcome.cell.seed) if len(cells) > 1 else "mean"
            rows.append({**shared, "seed": seed, **_to_columns(points)})
            if cell.outcome.state in ("diverged", "crashed"):
                label = f"{cell.outcome.state}, last value at step {points[-1][0]:,}"
                failures.append({**shared, **_to_columns(points[-1:]), "label": label})
        if len(cells) > 1 and (mean := _mean_curve(split, cells)):
            rows.append({**shared, "seed": "mean", **_to_columns(mean)})
    return rows, failures


def _mean_curve(split: str, cells: Sequence[CellCurves]) -> Points:
    """Return the mean over seeds, smoothed if it is long; empty if the seeds share no step."""
    mean = mean_over_seeds([cell.losses(split) for cell in cells])
    if split == "train" and len(mean) >= MIN_POINTS_TO_SMOOTH:
        max_points = max(30, min(MAX_CELL_POINTS, len(cells[0].train)) // 2)
        return evenly_spaced(moving_average(mean), max_points)
    return mean


def _to_columns(points: Points) -> dict[str, list[float]]:
    return {
        "step": [step for step, _ in points],
        "value": [round_significant(value, VALUE_DIGITS) for _, value in points],
    }


def _baseline_layers(y: alt.Y) -> list[Any]:
    """Return a dashed line, and its label, which is outlined to stay readable on top of curves."""
    base = alt.Chart(named_data(BASELINE)).encode(y=y)
    text: dict[str, Any] = {
        "align": "right",
        "dx": -6,
        "dy": -9,
        "fontSize": 12,
        "fontWeight": 600,
    }
    outline: dict[str, Any] = {"stroke": "var(--paper)", "strokeWidth": 4, "color": "var(--paper)"}
    label: dict[str, Any] = {"text": "label:N", "x": alt.value("width")}
    return [
        base.mark_rule(strokeDash=[6, 4], color="var(--quiet)", strokeWidth=1.4),
        base.mark_text(**text, **outline).encode(**label),
        base.mark_text(**text, color="var(--quiet)").encode(**label),
    ]


def _failure_layer(y: alt.Y, color: alt.Color) -> alt.Chart:
    """Return a cross at the last value of each cell that diverged or crashed."""
    return (
        flatten_lists(alt.Chart(named_data(FAILURES)), "step")
        .mark_point(shape="M-1-1L1 1M-1 1L1-1", size=110, strokeWidth=2.4, opacity=1, filled=False)
        .encode(
            x=step_axis(),
            y=y,
            color=color,
            tooltip=[
                alt.Tooltip("arm:N"),
                alt.Tooltip("at:N"),
                alt.Tooltip("label:N", title="outcome"),
            ],
        )
    )
