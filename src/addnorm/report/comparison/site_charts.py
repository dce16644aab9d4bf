"""Numbers from the first site to the last, an arm a colour."""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from addnorm.report.charts.base import CHART_HEIGHT, hover_layer, named_data
from addnorm.report.comparison.cell_curves import Setting, StudyCurves, mean_profile
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
from addnorm.report.html.page import Chart
from addnorm.report.theme import ArmStyle

SITE_CHART_SETTINGS = {
    "gradient_norm": ("Gradient norm", "norm of the gradient", True),
    "stream_variance": ("Variance of the stream", "variance", True),
    "dependency": ("Residual dependency", "Var[f] / Var[x + f]", False),
    "update_ratio": ("Update size", "|update| / |weight|", True),
}
"""Title, unit, and whether a log scale may be chosen."""
MAX_VALUES = 160_000
"""Numbers by site on a page."""


def site_chart(
    measure: str, rows: Rows, study_curves: StudyCurves, *, arms: Sequence[ArmStyle]
) -> Chart:
    """One number from the first site to the last, a line for each arm."""
    title, unit, _ = SITE_CHART_SETTINGS[measure]
    y = switchable_value_axis(unit)
    x = alt.X(
        "site:Q",
        title="site, from the input to the output",
        axis=alt.Axis(tickMinStep=1, format="d", labelOverlap=True),
        scale=alt.Scale(nice=False, zero=False, padding=8),
    )
    base = flatten_lists(
        alt.Chart(named_data(CURVES)).transform_calculate(
            site="datum.site || sequence(length(datum.value))"
        ),
        "site",
    ).transform_calculate(where=_site_name_expression(study_curves))
    colour = color_encoding(arms)
    lines = base.mark_line(strokeWidth=1.8, aria=False).encode(
        x=x, y=y, color=colour, **dash_encoding(arms)
    )
    points = base.mark_point(filled=True, size=34, opacity=1, aria=False).encode(
        x=x, y=y, color=colour, **symbol_encoding(arms)
    )
    tips = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("at:N", title="at"),
        alt.Tooltip("where:N", title="site"),
        alt.Tooltip("value:Q", title=unit, format=".4g"),
    ]
    layers = [lines, points, hover_layer(base, tips, y=y, x=x, fields=("arm", "site"))]
    return assemble_comparison_chart(title, layers, {CURVES: rows}, height=CHART_HEIGHT)


def site_rows(
    study_curves: StudyCurves,
    groups: Groups,
    selection_keys: SelectionKeys,
    *,
    keys_by_priority: Sequence[str],
) -> tuple[dict[str, Rows], list[int], int]:
    """By measure: rows of each arm at each setting and step; the steps; settings left out.

    keep: keys of selections, the first wanted most; those that are too many are left out.
    """
    steps = study_curves.steps()
    wanted, cut = _select_within_budget(
        study_curves,
        groups,
        selection_keys,
        keys_by_priority=keys_by_priority,
        num_steps=len(steps),
    )
    made: dict[str, Rows] = {measure: [] for measure in SITE_CHART_SETTINGS}
    for place in wanted:
        arm, setting = place
        at = setting_label(setting)
        inside = [trace.site_profiles for trace in groups[place]]
        for key in sorted({key for each in inside for key in each}):
            measure, stack, step = key
            if step not in steps:
                continue
            profile = mean_profile([each[key] for each in inside if key in each])
            if not profile:
                continue
            row: dict[str, Any] = {
                "arm": arm,
                "show": selection_keys[place],
                "stack": stack,
                "step": str(step),
                "at": at,
            }
            row["value"] = [round_significant(value) for value in profile.values()]
            if list(profile) != list(range(len(profile))):
                row["site"] = list(profile)
            made[measure].append(row)
    return made, steps, cut


def _select_within_budget(
    traces: StudyCurves,
    groups: Groups,
    selection_keys: SelectionKeys,
    *,
    keys_by_priority: Sequence[str],
    num_steps: int,
) -> tuple[list[tuple[str, Setting]], int]:
    """The arms at settings whose sites find room on a page, and how many do not."""
    order = {key: place for place, key in enumerate(keys_by_priority)}
    places = [place for place in groups if place in selection_keys]
    places.sort(key=lambda place: min(order[key] for key in selection_keys[place]))
    wanted: list[tuple[str, Setting]] = []
    room = MAX_VALUES
    for place in places:
        sizes = [sum(map(len, trace.site_profiles.values())) for trace in groups[place]]
        every = {step for trace in groups[place] for _, _, step in trace.site_profiles}
        room -= max(sizes) * min(1.0, num_steps / max(1, len(every)))  # type: ignore[assignment]
        if wanted and room < 0:
            break
        wanted.append(place)
    return wanted, len(places) - len(wanted)


def _site_name_expression(study_curves: StudyCurves) -> str:
    """An expression that names a site: `5: layer 1, cross`."""
    names = {
        stack: {str(site): f"{site}: {told}" if told else str(site) for site, told in sites.items()}
        for stack, sites in study_curves.sites.items()
    }
    return f"(({json.dumps(names)})[datum.stack] || {{}})['' + datum.site]"
