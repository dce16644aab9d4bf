"""Charts: what is drawn, what is left out and said so."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.report.charts.base import Event, log_ticks
from addnorm.report.charts.run import (
    MAX_LINES,
    SMOOTHED_LABEL,
    plot_curve,
    plot_heatmap,
    plot_loss,
    plot_over_depth,
    plot_over_steps,
)
from addnorm.report.downsample import MAX_POINTS, downsample, evenly_spaced, moving_average
from addnorm.report.html.page import Chart, Note

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


def site_rows(sites=4, steps=3, value=lambda site, step: site + step):
    return [
        {"step": step, "name": "m", "value": value(site, step), "site": site, "layer": site // 2,
         "kind": ("self", "ffn")[site % 2]}
        for step in range(1, steps + 1)
        for site in range(sites)
    ]  # fmt: skip


def values(chart, name="values"):
    return chart.spec["datasets"][name]


def strict(chart):
    """The chart as JSON, which has no word for what is not finite."""
    return json.dumps(chart.spec, allow_nan=False)


@given(NUMBERS, st.integers(2, 50))
def test_thinning_keeps_order_and_both_extremes(numbers, most):
    points = list(enumerate(numbers))
    kept = downsample(points, most)
    assert len(kept) <= max(2, most)
    assert kept == sorted(set(kept)) and set(kept) <= set(points)
    for extreme in (min, max):
        assert extreme(value for _, value in kept) == extreme(numbers)


@given(st.lists(st.integers(), min_size=1, max_size=200), st.integers(2, 40))
def test_spreading_keeps_the_ends(items, most):
    kept = evenly_spaced(items, most)
    assert len(kept) == min(most, len(items))
    assert (kept[0], kept[-1]) == (items[0], items[-1])


@given(NUMBERS)
def test_smoothing_stays_between_the_extremes_and_keeps_steps(numbers):
    made = moving_average(list(enumerate(numbers)))
    assert [step for step, _ in made] == list(range(len(numbers)))
    slack = 1e-6 * max(1.0, max(map(abs, numbers)))
    assert all(min(numbers) - slack <= value <= max(numbers) + slack for _, value in made)


def test_smoothing_has_no_lag():
    line = [(step, 3.0 * step) for step in range(400)]
    for made, given_ in list(zip(moving_average(line), line, strict=True))[5:-5]:
        assert made == pytest.approx(given_)


def test_log_ticks_only_for_wide_positive_values():
    assert log_ticks([1.0, 5.0]) == []
    assert log_ticks([-1.0, 5.0, 500.0]) == []
    assert log_ticks([]) == []
    ticks = log_ticks([1e-9, 1e9])
    assert 3 <= len(ticks) <= 12 and ticks == sorted(ticks)


def test_the_loss_shows_both_splits_and_the_best():
    train = [(step, 5 / step + 1) for step in range(1, 101)]
    chart = plot_loss(train, [(50, 1.5), (75, 1.25), (100, 1.4)], title="Loss")
    assert {row["curve"] for row in values(chart)} == {"training", SMOOTHED_LABEL, "validation"}
    assert values(chart, "best") == [{"step": 75, "value": 1.25, "told": "best 1.25 at 75"}]
    assert chart.note == "Thin: as measured. Thick: smoothed."


def test_what_is_not_finite_is_left_out_and_counted():
    points = [(1, 1.0), (2, math.nan), (3, math.inf), (4, 2.0)]
    chart = plot_loss(points, [(4, -math.inf)], title="Loss")
    assert "NaN" not in strict(chart)
    assert [row["step"] for row in values(chart)] == [1, 4]
    assert chart.note == "3 values are not finite and left out."
    rows = site_rows(2, 2, lambda site, step: math.nan if site * step == 1 else step)
    assert plot_over_steps(rows, title="t", y="y").note == "1 value is not finite and left out."


def test_nothing_measured_gives_a_note_instead_of_a_chart():
    assert plot_loss([], [], title="Loss") == Note("Loss: not measured.")
    assert plot_curve([], title="Speed", y="s") == Note("Speed: not measured.")
    for draw in (plot_over_steps, plot_over_depth, plot_heatmap):
        assert draw([], title="Inside", y="s") == Note("Inside: not measured.")
        found = draw(site_rows(2, 1, lambda *_: math.nan), title="Inside", y="s")
        assert found == Note("Inside: none of the 2 measured values is a finite number.")


def test_many_values_are_thinned_and_it_is_said():
    chart = plot_curve([(step, step % 13) for step in range(100_000)], title="t", y="y")
    assert len(values(chart)) <= MAX_POINTS
    assert chart.note.startswith("1,200 of 100,000 values are drawn")


@pytest.mark.parametrize("draw", [plot_over_steps, plot_heatmap])
def test_many_sites_and_steps_are_thinned_and_it_is_said(draw):
    chart = draw(site_rows(200, 150), title="t", y="y")
    assert len({row["site"] for row in values(chart)}) == MAX_LINES
    assert chart.note == "50 of 150 measured steps are drawn. 48 of 200 sites are drawn."
    assert len(values(chart)) == 50 * 48


def test_depth_is_shown_at_the_first_and_the_last_step():
    chart = plot_over_depth(site_rows(6, 41), title="t", y="y")
    assert sorted({row["step"] for row in values(chart)}) == [1, 11, 21, 31, 41]


@pytest.mark.parametrize("streams", [1, 2])
def test_depth_is_shown_for_each_stream_and_one_alone_needs_no_legend(streams):
    rows = [
        {"site": site, "stream": site % streams, "kind": "ffn", "value": 1.0 + site}
        for site in range(6)
    ]
    chart = plot_over_depth(rows, title="t", y="y", line_field="stream")
    assert {row["stream"] for row in values(chart)} == set(range(streams))
    assert all("step" not in row for row in values(chart))
    colour = json.loads(strict(chart))["layer"][0]["encoding"]["color"]
    assert colour["title"] == "stream" and (colour["legend"] is None) == (streams == 1)


def test_sites_are_named_by_layer_and_kind():
    assert '3: layer 1, ffn' in json.loads(strict(plot_over_steps(site_rows(), title="t", y="y")))[
        "layer"][0]["transform"][0]["calculate"]  # fmt: skip


def test_events_are_marked_and_a_divergence_told():
    events = [Event(3, "spike", 9.0), Event(8, "diverged")]
    chart = plot_curve([(step, 1.0) for step in range(10)], title="t", y="y", events=events)
    assert [row["step"] for row in values(chart, "events")] == [3, 8]
    assert values(chart, "words") == [{"step": 8, "told": "diverged at 8"}]


@pytest.mark.parametrize(
    "chart",
    [
        plot_curve([(1, 1.0)], title="one point", y="y"),
        plot_curve([(1, 0.0), (2, 0.0)], title="zeros", y="y", noisy=True),
        plot_curve([(n, 10.0**n) for n in range(-30, 30)], title="wide", y="y"),
        plot_loss([(1, 2.0)], [(1, 2.0)], title="one step", events=[Event(1, "diverged")]),
        plot_over_steps(site_rows(1, 1), title="one site", y="y"),
        plot_over_depth(site_rows(3, 2, lambda *_: 0.0), title="zeros", y="y"),
        plot_heatmap(site_rows(5, 1, lambda site, _: 10.0**site), title="one column", y="y"),
    ],
    ids=lambda chart: chart.title,
)
def test_odd_data_can_be_drawn(chart):
    assert isinstance(chart, Chart)
    assert "NaN" not in chart.static_svg and "<path" in chart.static_svg


def test_what_a_log_axis_has_no_place_for_is_counted():
    points = [(n, 10.0 ** (n % 5)) for n in range(1, 40)]
    chart = plot_curve([(0, 0.0), *points], title="t", y="y")
    assert chart.note == "1 value is not above 0 and left out: the axis is log."
    rows = site_rows(6, 4, lambda site, step: 0.0 if site + step == 1 else 10.0**site)
    for draw in (plot_over_steps, plot_over_depth, plot_heatmap):
        assert draw(rows, title="t", y="y").note.endswith("left out: the axis is log.")
    assert plot_curve([(1, 0.0), (2, 1.0)], title="t", y="y").note == ""
