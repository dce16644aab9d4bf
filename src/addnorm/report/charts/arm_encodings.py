"""Encodings that distinguish arms: color, symbol and dash pattern."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from addnorm.report.theme import ArmStyle


def color_encoding(arms: Sequence[ArmStyle]) -> alt.Color:
    """Return the color encoding of the field `arm`."""
    scale = alt.Scale(domain=[arm.name for arm in arms], range=[arm.color for arm in arms])
    return alt.Color("arm:N", title=None, scale=scale)


def symbol_encoding(arms: Sequence[ArmStyle]) -> dict[str, Any]:
    """Return the symbol encoding of the field `arm` as keyword arguments of `encode`."""
    scale = alt.Scale(domain=[arm.name for arm in arms], range=[arm.shape for arm in arms])
    return {"shape": alt.Shape("arm:N", title=None, scale=scale)}


def dash_encoding(arms: Sequence[ArmStyle]) -> dict[str, Any]:
    """Return the dash encoding of the field `arm`; empty while every arm has its own color."""
    if not any(arm.dash for arm in arms):
        return {}
    dashes = [list(arm.dash) or [1, 0] for arm in arms]
    scale = alt.Scale(domain=[arm.name for arm in arms], range=dashes)
    return {"strokeDash": alt.StrokeDash("arm:N", title=None, scale=scale)}


def switchable_value_axis(title: str) -> alt.Y:
    """Return a linear y axis that the log switch of a `ChartGroup` can replace."""
    axis = alt.Axis(tickCount=5, format="~g", labelOverlap="greedy")
    return alt.Y("value:Q", title=title, scale=alt.Scale(zero=False, nice=True), axis=axis)
