"""Charts of rows measured at sites: what is drawn, and what is omitted and stated."""

import json
import math

import pytest

from addnorm.report.charts.sites import MAX_LINES, plot_heatmap, plot_over_depth, plot_over_steps
from addnorm.report.html.page import Chart, Note

ALL_PLOTS = (plot_over_steps, plot_over_depth, plot_heatmap)


def site_rows(sites=4, steps=3, value=lambda site, step: site + step):
    return [
        {"step": step, "name": "m", "value": value(site, step), "site": site, "layer": site // 2,
         "kind": ("self", "ffn")[site % 2]}
        for step in range(1, steps + 1)
        for site in range(sites)
    ]  # fmt: skip


def values(chart):
    return chart.spec["datasets"]["values"]


def parse_strictly(chart):
    """Serialize the spec as JSON, which cannot represent NaN, and parse it again."""
    return json.loads(json.dumps(chart.spec, allow_nan=False))


def test_nonfinite_values_are_dropped_and_counted():
    rows = site_rows(2, 2, lambda site, step: math.nan if site * step == 1 else step)
    chart = plot_over_steps(rows, title="t", y="y")
    parse_strictly(chart)
    assert chart.note == "1 value is not finite and omitted."


@pytest.mark.parametrize("plot", ALL_PLOTS)
def test_chart_without_values_is_a_note(plot):
    assert plot([], title="Metric", y="s") == Note("Metric: not measured.")
    note = plot(site_rows(2, 1, lambda *_: math.nan), title="Metric", y="s")
    assert note == Note("Metric: none of the 2 measured values is finite.")


@pytest.mark.parametrize("plot", [plot_over_steps, plot_heatmap])
def test_many_sites_and_steps_are_downsampled_and_noted(plot):
    chart = plot(site_rows(200, 150), title="t", y="y")
    assert len({row["site"] for row in values(chart)}) == MAX_LINES
    assert chart.note == "50 of 150 measured steps are drawn. 48 of 200 sites are drawn."
    assert len(values(chart)) == 50 * 48


def test_depth_chart_includes_first_and_last_step():
    chart = plot_over_depth(site_rows(6, 41), title="t", y="y")
    assert sorted({row["step"] for row in values(chart)}) == [1, 11, 21, 31, 41]


@pytest.mark.parametrize("streams", [1, 2])
def test_depth_chart_has_one_line_per_stream_and_no_legend_for_one(streams):
    rows = [
        {"site": site, "stream": site % streams, "kind": "ffn", "value": 1.0 + site}
        for site in range(6)
    ]
    chart = plot_over_depth(rows, title="t", y="y", line_field="stream")
    assert {row["stream"] for row in values(chart)} == set(range(streams))
    assert all("step" not in row for row in values(chart))
    color = parse_strictly(chart)["layer"][0]["encoding"]["color"]
    assert color["title"] == "stream" and (color["legend"] is None) == (streams == 1)


def test_sites_are_named_by_layer_and_kind():
    spec = parse_strictly(plot_over_steps(site_rows(), title="t", y="y"))
    assert "3: layer 1, ffn" in spec["layer"][0]["transform"][0]["calculate"]


@pytest.mark.parametrize(
    "chart",
    [
        plot_over_steps(site_rows(1, 1), title="one site", y="y"),
        plot_over_depth(site_rows(3, 2, lambda *_: 0.0), title="zeros", y="y"),
        plot_heatmap(site_rows(5, 1, lambda site, _: 10.0**site), title="one column", y="y"),
    ],
    ids=lambda chart: chart.title,
)
def test_degenerate_data_can_be_drawn(chart):
    assert isinstance(chart, Chart)
    assert "NaN" not in chart.static_svg and "<path" in chart.static_svg


@pytest.mark.parametrize("plot", ALL_PLOTS)
def test_values_that_a_log_axis_cannot_show_are_counted(plot):
    rows = site_rows(6, 4, lambda site, step: 0.0 if site + step == 1 else 10.0**site)
    assert plot(rows, title="t", y="y").note.endswith("not positive and omitted from the log axis.")
