"""Charts of per-site metrics from the first site to the last, one color for each arm."""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from addnorm.report.charts.arm_encodings import (
    color_encoding,
    dash_encoding,
    switchable_value_axis,
    symbol_encoding,
)
from addnorm.report.charts.base import CHART_HEIGHT, hover_layer, named_data, site_axis
from addnorm.report.comparison.cell_curves import StudyCurves, mean_profile
from addnorm.report.comparison.chart_base import (
    CURVES,
    VALUE_DIGITS,
    ArmSetting,
    Groups,
    Rows,
    SelectionKeys,
    assemble_comparison_chart,
    flatten_lists,
    setting_label,
)
from addnorm.report.comparison.site_metrics import SITE_METRICS
from addnorm.report.format import numbered_site, round_significant
from addnorm.report.html.page import Chart
from addnorm.report.theme import ArmStyle

MAX_VALUES = 160_000
"""Maximum number of per-site values on a page."""


def plot_sites(
    measure: str, rows: Rows, study_curves: StudyCurves, *, arms: Sequence[ArmStyle]
) -> Chart:
    """Return the chart of one metric over sites, with one line for each arm.

    Args:
        measure: a key of `SITE_METRICS`
        rows: the rows that `site_rows` returns for the metric
        study_curves: the labels of the sites
        arms: styles of all arms
    """
    metric = SITE_METRICS[measure]
    x, y = site_axis(), switchable_value_axis(metric.axis_title)
    # Rows whose sites are 0, 1, 2, ... do not store them.
    with_sites = alt.Chart(named_data(CURVES)).transform_calculate(
        site="datum.site || sequence(length(datum.value))"
    )
    base = flatten_lists(with_sites, "site").transform_calculate(
        site_name=_site_name_expression(study_curves)
    )
    color = color_encoding(arms)
    lines = base.mark_line(strokeWidth=1.8, aria=False).encode(
        x=x, y=y, color=color, **dash_encoding(arms)
    )
    points = base.mark_point(filled=True, size=34, opacity=1, aria=False).encode(
        x=x, y=y, color=color, **symbol_encoding(arms)
    )
    tooltip = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("at:N", title="at"),
        alt.Tooltip("site_name:N", title="site"),
        alt.Tooltip("value:Q", title=metric.axis_title, format=".4g"),
    ]
    layers = [lines, points, hover_layer(base, tooltip, y=y, x=x, fields=("arm", "site"))]
    return assemble_comparison_chart(metric.title, layers, {CURVES: rows}, height=CHART_HEIGHT)


def site_rows(
    study_curves: StudyCurves,
    groups: Groups,
    selection_keys: SelectionKeys,
    *,
    keys_by_priority: Sequence[str],
) -> tuple[dict[str, Rows], list[int], int]:
    """Return the rows of each metric, the steps they cover, and the number of omitted settings.

    Args:
        study_curves: the curves of all cells
        groups: the cells of all seeds by arm and setting
        selection_keys: the selections that include an arm at a setting
        keys_by_priority: keys of all selections. The settings of the first ones are kept if a page
            cannot hold the values of all.
    """
    steps = study_curves.steps()
    kept, num_omitted = _select_within_budget(
        groups, selection_keys, keys_by_priority=keys_by_priority, num_steps=len(steps)
    )
    rows: dict[str, Rows] = {measure: [] for measure in SITE_METRICS}
    for arm_setting in kept:
        arm, setting = arm_setting
        profiles = [cell.site_profiles for cell in groups[arm_setting]]
        for key in sorted({key for each in profiles for key in each}):
            measure, stack, step = key
            if step not in steps:
                continue
            profile = mean_profile([each[key] for each in profiles if key in each])
            if not profile:
                continue
            row: dict[str, Any] = {
                "arm": arm,
                "show": selection_keys[arm_setting],
                "stack": stack,
                "step": str(step),
                "at": setting_label(setting),
                "value": [round_significant(value, VALUE_DIGITS) for value in profile.values()],
            }
            if list(profile) != list(range(len(profile))):
                row["site"] = list(profile)
            rows[measure].append(row)
    return rows, steps, num_omitted


def _select_within_budget(
    groups: Groups,
    selection_keys: SelectionKeys,
    *,
    keys_by_priority: Sequence[str],
    num_steps: int,
) -> tuple[list[ArmSetting], int]:
    """Return the settings whose values fit on a page, and the number of those that do not."""
    priority = {key: index for index, key in enumerate(keys_by_priority)}
    candidates = [each for each in groups if each in selection_keys]
    candidates.sort(key=lambda each: min(priority[key] for key in selection_keys[each]))
    kept: list[ArmSetting] = []
    budget = float(MAX_VALUES)
    for candidate in candidates:
        cells = groups[candidate]
        sizes = [sum(map(len, cell.site_profiles.values())) for cell in cells]
        measured_steps = {step for cell in cells for _, _, step in cell.site_profiles}
        budget -= max(sizes) * min(1.0, num_steps / max(1, len(measured_steps)))
        if kept and budget < 0:
            break
        kept.append(candidate)
    return kept, len(candidates) - len(kept)


def _site_name_expression(study_curves: StudyCurves) -> str:
    """Return a Vega expression for the name of a site, which depends on the stack."""
    names = {
        stack: {str(site): numbered_site(site, label) for site, label in labels.items()}
        for stack, labels in study_curves.sites.items()
    }
    return f"(({json.dumps(names)})[datum.stack] || {{}})['' + datum.site]"
