"""Small charts of measurements as inline SVG, colored by the style sheet of the site."""

import math
import re
from collections.abc import Mapping, Sequence

from tools.pages.measurements import find_measurement, read_measurements

WIDTH, HEIGHT = 320, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 26, 34
MARK = re.compile(r"<!-- charts: (\w+)/(\w+) -->")
MOMENTS = {"1": "untrained", "20": "after 20 steps", "100": "after 100 steps"}
METRICS = {
    "gradient": "Gradient norm of each sub-layer's weights",
    "stream": "Variance of the stream behind each sub-layer",
}
REFERENCES = {"wirings": "pre_ln", "norms": "layer"}
Values = Sequence[float | None]


def add_charts(pages: dict[str, str]) -> None:
    """Replace the marks in the pages of wirings and norms by charts of gradient and stream."""
    for name, text in pages.items():
        pages[name] = MARK.sub(lambda found: member_charts(found[1], found[2]), text)


def member_charts(family: str, name: str) -> str:
    """Return both charts of a member, with the untrained reference as a dotted line."""
    measurement = find_measurement(family, name)
    assert measurement is not None, (family, name)
    reference = REFERENCES[family]
    known = read_measurements()[family].get(reference)
    charts = []
    for metric, title in METRICS.items():
        lines = {label: measurement[metric][step] for step, label in MOMENTS.items()}
        if known and name != reference:
            lines[f"{reference}, untrained"] = known[metric]["1"]
        charts.append(render_chart(title, lines))
    return '<div class="charts">\n' + "\n".join(charts) + "\n</div>"


def render_chart(title: str, lines: Mapping[str, Values], *, caption: str = "") -> str:
    """Return a line chart over the sub-layers with a logarithmic vertical axis.

    Values that are missing, not positive or not finite leave a gap.

    Args:
        title: heading of the chart
        lines: values from the first sub-layer to the last, by the label of each line
        caption: text below the legend
    """
    low, high = log_range([value for values in lines.values() for value in values])
    count = max(len(values) for values in lines.values())

    def x(index: float) -> float:
        return LEFT + index / max(count - 1, 1) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - math.log10(value)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text class="chart-title" x="0" y="13">{title}</text>']
    for value in tick_values(low, high):
        at = y(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}">{value:g}</text>')
    bottom = HEIGHT - BOTTOM + 15
    parts.append(f'<text class="axis" x="{x(0):.0f}" y="{bottom}">1</text>')
    parts.append(f'<text class="axis end" x="{x(count - 1):.0f}" y="{bottom}">{count}</text>')
    middle = x((count - 1) / 2)
    parts.append(f'<text class="axis middle" x="{middle:.0f}" y="{bottom}">sub-layer</text>')
    for number, (label, values) in enumerate(lines.items()):
        for points in segments(values):
            path = " ".join(f"{x(index):.1f},{y(value):.1f}" for index, value in points)
            parts.append(
                f'<polyline class="line line{number}" points="{path}"><title>{label}</title>'
                "</polyline>"
            )
    legend = "".join(
        f'<span><i class="key line{number}"></i>{label}</span>'
        for number, label in enumerate(lines)
    )
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}"'
    svg = f"<svg {box}>{''.join(parts)}</svg>"
    below = f"<p>{caption}</p>" if caption else ""
    return f'<figure class="chart">{svg}<figcaption>{legend}{below}</figcaption></figure>'


def log_range(values: Values) -> tuple[float, float]:
    """Return the exponents that the axis spans: those of the values, and at least one decade."""
    logs = [math.log10(value) for value in values if value and value > 0]
    if not logs:
        return -1.0, 1.0
    low, high = min(logs), max(logs)
    missing = max(0.0, 1.0 - (high - low)) / 2
    return low - missing - 0.05, high + missing + 0.05


def tick_values(low: float, high: float) -> list[float]:
    """Return at most five powers of ten in a range of exponents; 1, 2 and 5 of each if it is short.

    >>> tick_values(-0.5, 0.6), tick_values(-1.2, 3.1)
    ([0.5, 1.0, 2.0], [0.1, 1.0, 10.0, 100.0, 1000.0])
    """
    inside = range(math.ceil(low), math.floor(high) + 1)
    if len(inside) < 3:
        values = [
            factor * 10.0**exponent
            for exponent in range(math.floor(low), math.ceil(high) + 1)
            for factor in (1, 2, 5)
        ]
        return [value for value in values if low <= math.log10(value) <= high]
    step = math.ceil(len(inside) / 5)
    return [10.0**exponent for exponent in inside if exponent % step == 0]


def segments(values: Values) -> list[list[tuple[int, float]]]:
    """Return runs of neighboring values that the axis can show.

    >>> segments([1.0, None, 2.0, 3.0])
    [[(0, 1.0)], [(2, 2.0), (3, 3.0)]]
    """
    runs: list[list[tuple[int, float]]] = [[]]
    for index, value in enumerate(values):
        if value and value > 0:
            runs[-1].append((index, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]
