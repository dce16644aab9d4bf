"""Groups of charts that share drop-down selectors, a log switch and arm check boxes.

Every row of a chart's data names the selections it belongs to. The page's script (`charts.js.j2`)
keeps the rows that match the form and draws the chart again. `filter_spec` and `apply_scale` do the
same in Python, for the static image that a page shows first and for exported files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from addnorm.report.html.page import Chart, Part
from addnorm.report.theme import ArmStyle

STYLE_DRAWS_MEAN = {"seeds": False, "means": True}
"""Mark styles that draw only single seeds, or only the mean over seeds."""
LOG_TICK_COUNT = 3
"""Ticks of a log axis that Vega aims at; more would label values between powers of ten."""


@dataclass(frozen=True)
class ChartSelector:
    """A drop-down list that selects rows by the value of one field."""

    field: str
    label: str
    groups: Mapping[str, Mapping[str, str]]
    """Headings, and below each the values with their text; a single heading "" for no groups."""
    default: str
    """The value that is selected at first."""


@dataclass(frozen=True)
class ChartGroup:
    """Charts that share selectors, a log switch and check boxes for the arms."""

    charts: Sequence[Chart]
    selectors: Sequence[ChartSelector]
    arms: Sequence[ArmStyle]
    log: bool = False
    """Whether the log switch is on at first."""
    below: Sequence[Part] = ()
    """Parts below the charts, such as the data as a table."""
    kind: str = field(default="chart_group", init=False)

    @property
    def static_charts(self) -> list[tuple[Chart, Markup]]:
        """Each chart with the static image of its default selection."""
        selected = {selector.field: selector.default for selector in self.selectors}
        images = []
        for chart in self.charts:
            spec = apply_scale(filter_spec(chart.spec, selected), log=self.log and chart.log)
            images.append((chart, replace(chart, spec=spec).static_svg))
        return images


def filter_spec(spec: Mapping[str, Any], selected: Mapping[str, str]) -> dict[str, Any]:
    """Return a spec with only the selected rows, without the layers that have none left.

    Args:
        spec: a layered Vega-Lite spec with named datasets
        selected: field names and values. A row matches if each of these fields that it has is
            equal to the value, or is a list that contains it.
    """

    def matches(row: Mapping[str, Any]) -> bool:
        return all(
            value in row[field] if isinstance(row[field], list) else row[field] == value
            for field, value in selected.items()
            if field in row
        )

    data = {name: [row for row in rows if matches(row)] for name, rows in spec["datasets"].items()}

    def has_rows(layer: Mapping[str, Any]) -> bool:
        rows = data[layer.get("data", spec.get("data"))["name"]]
        draws_mean = STYLE_DRAWS_MEAN.get(layer["mark"].get("style"))
        return any(draws_mean is None or (row["seed"] == "mean") == draws_mean for row in rows)

    return {**spec, "datasets": data, "layer": [each for each in spec["layer"] if has_rows(each)]}


def apply_scale(spec: Mapping[str, Any], *, log: bool) -> dict[str, Any]:
    """Return a spec with a log value axis, or unchanged if `log` is false."""
    if not log:
        return dict(spec)
    layers = []
    for layer in spec["layer"]:
        encoding = layer["encoding"]
        scale = {"type": "log", "nice": False, "padding": 8}
        axis = {**(encoding["y"].get("axis") or {}), "tickCount": LOG_TICK_COUNT}
        y = {**encoding["y"], "scale": scale, "axis": axis}
        layers.append({**layer, "encoding": {**encoding, "y": y}})
    params = [{**each, "value": True} if each["name"] == "log" else each for each in spec["params"]]
    return {**spec, "layer": layers, "params": params}
