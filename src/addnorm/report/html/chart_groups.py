"""A board: charts that share their choices, and the choices, as plain data for the template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from addnorm.report.html.page import Chart, Part
from addnorm.report.theme import ArmStyle

STYLE_DRAWS_MEAN = {"seeds": False, "means": True}
"""Styles of marks that draw only the seeds, or only their mean."""
LOG_TICKS = 3
"""Powers of ten from which on a log axis has lines at these alone."""


@dataclass(frozen=True)
class ChartSelector:
    """One of several values of a field of the data; rows of other values are not drawn."""

    field: str
    label: str
    groups: Mapping[str, Mapping[str, str]]
    """Heads of groups, and in each the values with their words; one head "" for no groups."""
    default: str


@dataclass(frozen=True)
class ChartGroup:
    """Charts whose rows are picked by choices and by arms that can be switched off."""

    name: str
    """For programs: the name of its form."""
    charts: Sequence[Chart]
    choices: Sequence[ChartSelector]
    arms: Sequence[ArmStyle]
    log: bool = False
    """Whether it begins on a log scale."""
    below: Sequence[Part] = ()
    """What stands below the charts: the data in a table."""
    kind: str = field(default="board", init=False)

    @property
    def static_charts(self) -> list[tuple[Chart, Markup]]:
        """The charts, each with a picture of what is chosen at first."""
        chosen = {choice.field: choice.default for choice in self.choices}
        made = []
        for chart in self.charts:
            spec = apply_scale(filter_spec(chart.spec, chosen), log=self.log and chart.log)
            made.append((chart, replace(chart, spec=spec).static_svg))
        return made


def filter_spec(spec: Mapping[str, Any], selected: Mapping[str, str]) -> dict[str, Any]:
    """The spec with the rows that are chosen, without layers that have none.

    What the page's script does, for still pictures.
    """

    def fits(row: Mapping[str, Any]) -> bool:
        return all(
            value in row[field] if isinstance(row[field], list) else row[field] == value
            for field, value in selected.items()
            if field in row
        )

    data = {name: [row for row in rows if fits(row)] for name, rows in spec["datasets"].items()}

    def has_rows(layer: Mapping[str, Any]) -> bool:
        rows = data[layer.get("data", spec.get("data"))["name"]]
        part = STYLE_DRAWS_MEAN.get(layer["mark"].get("style"))
        return any(part is None or (row["seed"] == "mean") == part for row in rows)

    return {**spec, "datasets": data, "layer": [each for each in spec["layer"] if has_rows(each)]}


def apply_scale(spec: Mapping[str, Any], *, log: bool) -> dict[str, Any]:
    """The spec on a linear or a log scale; what the page's script does, for still pictures."""
    if not log:
        return dict(spec)
    layers = []
    for layer in spec["layer"]:
        encoding = layer["encoding"]
        scale = {"type": "log", "nice": False, "padding": 8}
        axis = {**(encoding["y"].get("axis") or {}), "tickCount": LOG_TICKS}
        y = {**encoding["y"], "scale": scale, "axis": axis}
        layers.append({**layer, "encoding": {**encoding, "y": y}})
    params = [{**each, "value": True} if each["name"] == "log" else each for each in spec["params"]]
    return {**spec, "layer": layers, "params": params}
