"""What the charts of a comparison are made of.

A row of the data is a whole curve, its numbers in lists that Vega-Lite takes apart; a curve names
the selections in which it is seen, and page and exports pick by that.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from addnorm.comparison.analysis.summary import Setting as Chosen
from addnorm.report.charts.base import THEME
from addnorm.report.comparison.cell_curves import Setting, Trace, Traces
from addnorm.report.comparison.selections import Selection
from addnorm.report.html.page import Chart
from addnorm.report.theme import Look

CURVES = "curves"
BARE = THEME | {"legend": {"disable": True}}
"""On a page the switches of the arms are the legend."""
Rows = list[dict[str, Any]]
Groups = dict[tuple[str, Setting], list[Trace]]
Shown = Mapping[tuple[str, Setting], list[str]]


def grouped(traces: Traces) -> Groups:
    """The seeds of each arm at each setting."""
    found: Groups = {}
    for trace in traces.all:
        found.setdefault((trace.arm.name, trace.setting), []).append(trace)
    return found


def shown_in(made: Sequence[Selection]) -> dict[tuple[str, Setting], list[str]]:
    """In which selections an arm at a setting is seen."""
    found: dict[tuple[str, Setting], list[str]] = {}
    for selection in made:
        for arm, setting in selection.settings.items():
            found.setdefault((arm.name, setting), []).append(selection.key)
    return found


def flat(chart: alt.Chart, other: str) -> alt.Chart:
    """The lists of a curve taken apart; a log scale has no place for zero."""
    return chart.transform_flatten([other, "value"]).transform_filter("!log || datum.value > 0")


def values_axis(title: str) -> alt.Y:
    """The axis of values; the page may put it on a log scale."""
    axis = alt.Axis(tickCount=5, format="~g", labelOverlap="greedy")
    return alt.Y("value:Q", title=title, scale=alt.Scale(zero=False, nice=True), axis=axis)


def colour_of(arms: Sequence[Look]) -> alt.Color:
    """Each arm in its own colour."""
    scale = alt.Scale(domain=[arm.name for arm in arms], range=[arm.colour for arm in arms])
    return alt.Color("arm:N", title=None, scale=scale)


def symbols(arms: Sequence[Look]) -> dict[str, Any]:
    """Each arm with its own symbol."""
    scale = alt.Scale(domain=[arm.name for arm in arms], range=[arm.shape for arm in arms])
    return {"shape": alt.Shape("arm:N", title=None, scale=scale)}


def dashes(arms: Sequence[Look]) -> dict[str, Any]:
    """Dashes, where there are more arms than colours."""
    if not any(arm.dash for arm in arms):
        return {}
    dashes = [list(arm.dash) or [1, 0] for arm in arms]
    scale = alt.Scale(domain=[arm.name for arm in arms], range=dashes)
    return {"strokeDash": alt.StrokeDash("arm:N", title=None, scale=scale)}


def finished(title: str, layers: Sequence[Any], values: Mapping[str, Any], *, height: int) -> Chart:
    """The layers as one chart; it starts on a linear scale."""
    chart = alt.layer(*layers).properties(width="container", height=height)
    chart = chart.add_params(alt.param(name="log", value=False))
    spec = chart.to_dict(validate=False) | {"config": BARE, "datasets": dict(values)}
    return Chart(title, spec)


def told_setting(setting: Setting) -> str:
    """Depth and setting in words."""
    depth, warmup, lr = setting
    return f"depth {depth}, {Chosen(warmup, lr).told()}"


def short(value: float) -> float:
    """Four digits: more is not seen, and a page should be small."""
    return float(f"{value:.4g}") if math.isfinite(value) else 0.0
