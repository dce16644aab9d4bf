"""What the loss charts and the site charts of a comparison share.

A row of a chart's data is a whole curve:

    {"arm": "pre_ln", "show": ["depth-6-lr-0.001-no-warm-up"], "seed": "0",
     "at": "depth 6, lr 0.001, no warm-up", "step": [1, 2, 3], "value": [9.1, 8.7, 8.2]}

Vega-Lite expands the lists (`flatten_lists`), which keeps a page several times smaller than one row
for each point. `show` lists the keys of the selections that include the curve.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from addnorm.comparison.analysis.arm_summary import Setting
from addnorm.report.charts.base import CHART_CONFIG
from addnorm.report.comparison.cell_curves import CellCurves, CellSetting, StudyCurves
from addnorm.report.comparison.cell_selections import Selection
from addnorm.report.html.page import Chart

CURVES = "curves"
"""Name of the dataset of curves."""
VALUE_DIGITS = 4
"""Significant digits of a chart's values."""
NO_LEGEND_CONFIG = CHART_CONFIG | {"legend": {"disable": True}}
"""Configuration for pages, where the arm check boxes serve as the legend."""
Rows = list[dict[str, Any]]
ArmSetting = tuple[str, CellSetting]
"""Name of an arm, and its setting."""
Groups = dict[ArmSetting, list[CellCurves]]
"""The seeds of each arm at each setting."""
SelectionKeys = Mapping[ArmSetting, list[str]]


def group_by_setting(study_curves: StudyCurves) -> Groups:
    """Return the cells of all seeds by arm and setting."""
    groups: Groups = {}
    for cell in study_curves.cells:
        groups.setdefault((cell.arm.name, cell.setting), []).append(cell)
    return groups


def map_selection_keys(selections: Sequence[Selection]) -> dict[ArmSetting, list[str]]:
    """Return the keys of the selections that include an arm at a setting."""
    keys: dict[ArmSetting, list[str]] = {}
    for selection in selections:
        for arm, setting in selection.settings.items():
            keys.setdefault((arm.name, setting), []).append(selection.key)
    return keys


def flatten_lists(chart: alt.Chart, x_field: str) -> alt.Chart:
    """Expand the lists of a curve into points, without those that a log axis cannot show."""
    return chart.transform_flatten([x_field, "value"]).transform_filter("!log || datum.value > 0")


def assemble_comparison_chart(
    title: str, layers: Sequence[Any], values: Mapping[str, Any], *, height: int
) -> Chart:
    """Join layers into one chart with the parameter `log`, which the log switch sets."""
    chart = alt.layer(*layers).properties(width="container", height=height)
    chart = chart.add_params(alt.param(name="log", value=False))
    spec = chart.to_dict(validate=False) | {"config": NO_LEGEND_CONFIG, "datasets": dict(values)}
    return Chart(title, spec)


def setting_label(setting: CellSetting) -> str:
    """Return depth, learning rate and warm-up as text."""
    depth, warmup, lr = setting
    return f"depth {depth}, {Setting(warmup, lr).format()}"
