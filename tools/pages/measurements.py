"""Measurements of docs/catalogue/measured.json as text; `tools/measure_catalogue.py` makes them."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parents[2] / "docs" / "catalogue" / "measured.json"
TRAINED_SHARE = 0.75
"""A model has trained if its loss is below this share of a uniform guess's."""


@cache
def read_measurements() -> dict[str, Any]:
    """Return the stored measurements; no members if there are none."""
    if not MEASURED.exists():
        return {"settings": {}, "wirings": {}, "norms": {}}
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def find_measurement(family: str, name: str) -> dict[str, Any] | None:
    """Return the measurement of a member, if it was measured."""
    return read_measurements()[family].get(name)


def has_trained(measurement: dict[str, Any]) -> bool:
    """Return whether the loss after training is clearly below that of a uniform guess."""
    guess = math.log(read_measurements()["settings"]["vocab"])
    return measurement["loss"] is not None and measurement["loss"] < TRAINED_SHARE * guess


def measured_parts(family: str, name: str) -> list[str]:
    """Return the section of a page: whether it trains, gradient and stream by depth, and cost.

    The site replaces the comment by charts.
    """
    measurement = find_measurement(family, name)
    if measurement is None:
        return []
    settings = read_measurements()["settings"]
    guess = math.log(settings["vocab"])
    loss = "not finite" if measurement["loss"] is None else f"{measurement['loss']:.2g}"
    verb = "trains" if has_trained(measurement) else "does not train"
    place = "" if family == "wirings" else " in Pre-LN"
    first = (
        f"A model of {settings['depth']} layers of width {settings['dim']}{place} {verb} without "
        f"warm-up: its loss is {loss} after {settings['steps']} steps of Adam at a learning rate "
        f"of {settings['lr']:g}; a uniform guess has {guess:.2f}. The task is to copy the input, "
        "which requires only that signal and gradient pass all sub-layers. One seed, one rate."
    )
    gradient = spread(measurement["gradient"]["1"])
    stream = ratio(measurement["stream"]["1"])
    lines = [first, f"<!-- charts: {family}/{name} -->"]
    if start := start_sentence(measurement.get("start", {})):
        lines.append(start)
    if gradient is not None and stream is not None:
        lines.append(
            f"Before training, the largest gradient of a sub-layer's weights is {number(gradient)} "
            f"times the smallest, and the variance of the stream behind the last sub-layer is "
            f"{number(stream)} times that behind the first."
        )
    return ["## Measured", *lines, cost_sentence(measurement["cost"])]


def start_sentence(start: dict[str, float | None]) -> str:
    """Return what the untrained model keeps of its input; empty if it has no finite values."""
    kept, alike = start.get("input_cosine"), start.get("token_cosine")
    if kept is None or alike is None:
        return ""
    return (
        f"The output of the untrained stack has a cosine of {kept:.2f} with its input, and of "
        f"{alike:.2f} between neighboring tokens (1: all tokens are alike)."
    )


def cost_sentence(cost: dict[str, float] | None) -> str:
    """Return the cost of a training step relative to Pre-LN's, in one sentence."""
    if cost is None:
        return "Its cost was not counted: GPT-2, which is causal, cannot have this norm."
    names = {"parameters": "parameters", "flops": "FLOPs", "activations": "stored activations"}
    parts = [f"{change(cost[key])} {name}" for key, name in names.items() if cost[key] != 1]
    what = ", ".join(parts) if parts else "no difference in parameters, FLOPs and activations"
    return f"Cost of a training step of GPT-2, compared with Pre-LN and LayerNorm: {what}."


def change(ratio: float) -> str:
    """Return a ratio as a signed percentage.

    >>> change(1.25), change(0.9987)
    ('+25 %', '-0.13 %')
    """
    return f"{100 * (ratio - 1):+.2g} %" if abs(ratio - 1) < 1 else f"{ratio:.2g} times the"


def spread(values: list[float | None]) -> float | None:
    """Return the largest value divided by the smallest that is not zero."""
    known = [value for value in values if value]
    return max(known) / min(known) if known else None


def ratio(values: list[float | None]) -> float | None:
    """Return the last value divided by the first."""
    return values[-1] / values[0] if values and values[0] and values[-1] is not None else None


def number(value: float) -> str:
    """Return a number with two digits, without an exponent where it is readable."""
    return f"{value:,.0f}" if 10 <= value < 1e6 else f"{value:.2g}"
