"""Numbers from the first site to the last, an arm a colour."""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from addnorm.report.charts.base import HEIGHT, data, hover
from addnorm.report.comparison.cell_curves import Setting, Traces, mean_profile
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
from addnorm.report.html.page import Chart
from addnorm.report.theme import Look

SITES = {
    "gradient_norm": ("Gradient norm", "norm of the gradient", True),
    "stream_variance": ("Variance of the stream", "variance", True),
    "dependency": ("Residual dependency", "Var[f] / Var[x + f]", False),
    "update_ratio": ("Update size", "|update| / |weight|", True),
}
"""Title, unit, and whether a log scale may be chosen."""
MOST_VALUES = 160_000
"""Numbers by site on a page."""


def site_chart(measure: str, rows: Rows, traces: Traces, *, arms: Sequence[Look]) -> Chart:
    """One number from the first site to the last, a line for each arm."""
    title, unit, _ = SITES[measure]
    y = values_axis(unit)
    x = alt.X(
        "site:Q",
        title="site, from the input to the output",
        axis=alt.Axis(tickMinStep=1, format="d", labelOverlap=True),
        scale=alt.Scale(nice=False, zero=False, padding=8),
    )
    base = flat(
        alt.Chart(data(CURVES)).transform_calculate(
            site="datum.site || sequence(length(datum.value))"
        ),
        "site",
    ).transform_calculate(where=_names(traces))
    colour = colour_of(arms)
    lines = base.mark_line(strokeWidth=1.8, aria=False).encode(
        x=x, y=y, color=colour, **dashes(arms)
    )
    points = base.mark_point(filled=True, size=34, opacity=1, aria=False).encode(
        x=x, y=y, color=colour, **symbols(arms)
    )
    tips = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("at:N", title="at"),
        alt.Tooltip("where:N", title="site"),
        alt.Tooltip("value:Q", title=unit, format=".4g"),
    ]
    layers = [lines, points, hover(base, tips, y=y, x=x, fields=("arm", "site"))]
    return finished(title, layers, {CURVES: rows}, height=HEIGHT)


def site_rows(
    traces: Traces, groups: Groups, shown: Shown, *, keep: Sequence[str]
) -> tuple[dict[str, Rows], list[int], int]:
    """By measure: rows of each arm at each setting and step; the steps; settings left out.

    keep: keys of selections, the first wanted most; those that are too many are left out.
    """
    steps = traces.steps()
    wanted, cut = _affordable(traces, groups, shown, keep=keep, moments=len(steps))
    made: dict[str, Rows] = {measure: [] for measure in SITES}
    for place in wanted:
        arm, setting = place
        at = told_setting(setting)
        inside = [trace.inside for trace in groups[place]]
        for key in sorted({key for each in inside for key in each}):
            measure, stack, step = key
            if step not in steps:
                continue
            profile = mean_profile([each[key] for each in inside if key in each])
            if not profile:
                continue
            row: dict[str, Any] = {
                "arm": arm,
                "show": shown[place],
                "stack": stack,
                "step": str(step),
                "at": at,
            }
            row["value"] = [short(value) for value in profile.values()]
            if list(profile) != list(range(len(profile))):
                row["site"] = list(profile)
            made[measure].append(row)
    return made, steps, cut


def _affordable(
    traces: Traces, groups: Groups, shown: Shown, *, keep: Sequence[str], moments: int
) -> tuple[list[tuple[str, Setting]], int]:
    """The arms at settings whose sites find room on a page, and how many do not."""
    order = {key: place for place, key in enumerate(keep)}
    places = [place for place in groups if place in shown]
    places.sort(key=lambda place: min(order[key] for key in shown[place]))
    wanted: list[tuple[str, Setting]] = []
    room = MOST_VALUES
    for place in places:
        sizes = [sum(map(len, trace.inside.values())) for trace in groups[place]]
        every = {step for trace in groups[place] for _, _, step in trace.inside}
        room -= max(sizes) * min(1.0, moments / max(1, len(every)))  # type: ignore[assignment]
        if wanted and room < 0:
            break
        wanted.append(place)
    return wanted, len(places) - len(wanted)


def _names(traces: Traces) -> str:
    """An expression that names a site: `5: layer 1, cross`."""
    names = {
        stack: {str(site): f"{site}: {told}" if told else str(site) for site, told in sites.items()}
        for stack, sites in traces.sites.items()
    }
    return f"(({json.dumps(names)})[datum.stack] || {{}})['' + datum.site]"
