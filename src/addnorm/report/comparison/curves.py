"""What the charts of a comparison are made of.

A row of the data is a whole curve, its numbers in lists that Vega-Lite takes apart; a curve names
the selections in which it is seen, and page and exports pick by that.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from addnorm.comparison.analysis.summary import Setting as Chosen
from addnorm.report.charts.base import CHART_CONFIG
from addnorm.report.comparison.cell_curves import CellCurves, Setting, StudyCurves
from addnorm.report.comparison.selections import Selection
from addnorm.report.html.page import Chart
from addnorm.report.theme import ArmStyle

CURVES = "curves"
NO_LEGEND_CONFIG = CHART_CONFIG | {"legend": {"disable": True}}
"""On a page the switches of the arms are the legend."""
Rows = list[dict[str, Any]]
Groups = dict[tuple[str, Setting], list[CellCurves]]
SelectionKeys = Mapping[tuple[str, Setting], list[str]]


def group_by_setting(study_curves: StudyCurves) -> Groups:
    """The seeds of each arm at each setting."""
    found: Groups = {}
    for trace in study_curves.cells:
        found.setdefault((trace.arm.name, trace.setting), []).append(trace)
    return found


def map_selection_keys(selections: Sequence[Selection]) -> dict[tuple[str, Setting], list[str]]:
    """In which selections an arm at a setting is seen."""
    found: dict[tuple[str, Setting], list[str]] = {}
    for selection in selections:
        for arm, setting in selection.settings.items():
            found.setdefault((arm.name, setting), []).append(selection.key)
    return found


def flatten_lists(chart: alt.Chart, other: str) -> alt.Chart:
    """The lists of a curve taken apart; a log scale has no place for zero."""
    return chart.transform_flatten([other, "value"]).transform_filter("!log || datum.value > 0")


def switchable_value_axis(title: str) -> alt.Y:
    """The axis of values; the page may put it on a log scale."""
    axis = alt.Axis(tickCount=5, format="~g", labelOverlap="greedy")
    return alt.Y("value:Q", title=title, scale=alt.Scale(zero=False, nice=True), axis=axis)


def color_encoding(arms: Sequence[ArmStyle]) -> alt.Color:
    """Each arm in its own colour."""
    scale = alt.Scale(domain=[arm.name for arm in arms], range=[arm.color for arm in arms])
    return alt.Color("arm:N", title=None, scale=scale)


def symbol_encoding(arms: Sequence[ArmStyle]) -> dict[str, Any]:
    """Each arm with its own symbol."""
    scale = alt.Scale(domain=[arm.name for arm in arms], range=[arm.shape for arm in arms])
    return {"shape": alt.Shape("arm:N", title=None, scale=scale)}


def dash_encoding(arms: Sequence[ArmStyle]) -> dict[str, Any]:
    """Dashes, where there are more arms than colours."""
    if not any(arm.dash for arm in arms):
        return {}
    dashes = [list(arm.dash) or [1, 0] for arm in arms]
    scale = alt.Scale(domain=[arm.name for arm in arms], range=dashes)
    return {"strokeDash": alt.StrokeDash("arm:N", title=None, scale=scale)}


def assemble_comparison_chart(
    title: str, layers: Sequence[Any], values: Mapping[str, Any], *, height: int
) -> Chart:
    """The layers as one chart; it starts on a linear scale."""
    chart = alt.layer(*layers).properties(width="container", height=height)
    chart = chart.add_params(alt.param(name="log", value=False))
    spec = chart.to_dict(validate=False) | {"config": NO_LEGEND_CONFIG, "datasets": dict(values)}
    return Chart(title, spec)


def setting_label(setting: Setting) -> str:
    """Depth and setting in words."""
    depth, warmup, lr = setting
    return f"depth {depth}, {Chosen(warmup, lr).format()}"


def round_significant(value: float) -> float:
    """Four digits: more is not seen, and a page should be small."""
    return float(f"{value:.4g}") if math.isfinite(value) else 0.0
