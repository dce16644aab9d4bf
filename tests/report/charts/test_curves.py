"""Charts of numbers over steps: what is drawn, and what is omitted and stated."""

import json
import math

import pytest

from addnorm.report.charts.base import log_ticks
from addnorm.report.charts.curves import SMOOTHED_LABEL, plot_curve, plot_loss
from addnorm.report.downsample import MAX_POINTS
from addnorm.report.html.page import Chart, Note
from addnorm.report.run_history import Event


def values(chart, name="values"):
    return chart.spec["datasets"][name]


def test_log_ticks_need_wide_positive_values():
    assert log_ticks([1.0, 5.0]) == []
    assert log_ticks([-1.0, 5.0, 500.0]) == []
    assert log_ticks([]) == []
    ticks = log_ticks([1e-9, 1e9])
    assert 3 <= len(ticks) <= 12 and ticks == sorted(ticks)


def test_loss_chart_shows_both_splits_and_the_best():
    train = [(step, 5 / step + 1) for step in range(1, 101)]
    chart = plot_loss(train, [(50, 1.5), (75, 1.25), (100, 1.4)], title="Loss")
    assert {row["curve"] for row in values(chart)} == {"training", SMOOTHED_LABEL, "validation"}
    assert values(chart, "best") == [{"step": 75, "value": 1.25, "label": "best 1.25 at 75"}]
    assert chart.note == "Thin line: raw values. Thick line: moving average."


def test_axis_titles_of_the_loss_chart_can_be_changed():
    chart = plot_loss([(1, 2.0), (2, 1.0)], [(2, 1.5)], title="Loss", x="epoch", y="loss")
    titles = {axis["title"] for layer in chart.spec["layer"] for axis in
              (layer["encoding"][name] for name in ("x", "y"))}  # fmt: skip
    assert titles == {"epoch", "loss"}


def test_constant_value_labels_the_axis():
    """Vega rounds the label of a single small value to 0."""
    chart = plot_curve([(1, 0.001), (2, 0.001)], title="Rate", y="lr", log=False)
    axes = [layer["encoding"]["y"]["axis"] for layer in chart.spec["layer"]]
    assert axes and all(axis == {"values": [0.001], "format": "~g"} for axis in axes)
    rising = plot_curve([(1, 0.001), (2, 0.002)], title="Rate", y="lr", log=False)
    assert "values" not in rising.spec["layer"][0]["encoding"]["y"]["axis"]


def test_nonfinite_values_are_dropped_and_counted():
    points = [(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0)]
    chart = plot_loss(points, [(4, -math.inf)], title="Loss")
    assert "NaN" not in json.dumps(chart.spec, allow_nan=False)
    assert [row["step"] for row in values(chart)] == [1, 4]
    assert chart.note == "3 values are not finite and omitted."


def test_chart_without_values_is_a_note():
    assert plot_loss([], [], title="Loss") == Note("Loss: not measured.")
    assert plot_curve([], title="Speed", y="s") == Note("Speed: not measured.")


def test_long_curves_are_downsampled_and_noted():
    chart = plot_curve([(step, step % 13) for step in range(100_000)], title="t", y="y")
    assert len(values(chart)) <= MAX_POINTS
    assert chart.note.startswith("1,200 of 100,000 values are drawn")


def test_events_are_marked_and_divergence_is_labeled():
    events = [Event(3, "spike", 9.0), Event(8, "diverged")]
    chart = plot_curve([(step, 1.0) for step in range(10)], title="t", y="y", events=events)
    assert [row["step"] for row in values(chart, "events")] == [3, 8]
    assert values(chart, "event_texts") == [{"step": 8, "label": "diverged at 8"}]


@pytest.mark.parametrize(
    "chart",
    [
        plot_curve([(1, 1.0)], title="one point", y="y"),
        plot_curve([(1, 0.0), (2, 0.0)], title="zeros", y="y", noisy=True),
        plot_curve([(n, 10.0**n) for n in range(-30, 30)], title="wide", y="y"),
        plot_loss([(1, 2.0)], [(1, 2.0)], title="one step", events=[Event(1, "diverged")]),
    ],
    ids=lambda chart: chart.title,
)
def test_degenerate_data_can_be_drawn(chart):
    assert isinstance(chart, Chart)
    assert "NaN" not in chart.static_svg and "<path" in chart.static_svg


def test_values_that_a_log_axis_cannot_show_are_counted():
    points = [(n, 10.0 ** (n % 5)) for n in range(1, 40)]
    chart = plot_curve([(0, 0.0), *points], title="t", y="y")
    assert chart.note == "1 value is not positive and omitted from the log axis."
    assert plot_curve([(1, 0.0), (2, 1.0)], title="t", y="y").note == ""
