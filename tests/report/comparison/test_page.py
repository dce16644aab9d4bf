"""The page of a comparison: content, escaping, and small, large or unfinished comparisons."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from addnorm.comparison import folder_layout as files
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.outcomes import Objective, format_rules
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.statistics import Estimate
from addnorm.comparison.tasks import get_task
from addnorm.core.errors import UserError
from addnorm.data.corpus import write_corpus
from addnorm.report.comparison.cell_curves import StudyCurves
from addnorm.report.comparison.cell_selections import build_selections, find_most_contrasting
from addnorm.report.comparison.page import render_comparison_page, write_comparison_report
from addnorm.report.comparison.page_charts import (
    ComparisonCharts,
    build_loss_charts,
    build_site_charts,
)
from addnorm.report.comparison.stability import (
    StabilityCell,
    build_stability_map,
    plot_stability_map,
)
from addnorm.report.comparison.summary import _format_gap
from addnorm.report.html.chart_groups import filter_spec
from addnorm.report.theme import ARM_COLORS, OUTCOME_COLORS, get_page_colors, make_arm_styles
from tests.comparison.same_process_engine import SameProcessEngine
from tests.comparison.synthetic_study import typical_outcome, write_synthetic_study

EVIL = "<script>alert('&')</script>"
SMALL = {"wiring": "post_ln,pre_ln", "depth": 2, "lr": [1e-3, 1e-2], "seeds": 2, "steps": 100}


@pytest.fixture
def no_vega(monkeypatch):
    """Skip the Vega bundle and static images, which take seconds; test_browser.py covers them."""
    monkeypatch.setattr("addnorm.report.html.page._vega_script", lambda: "/* vega */")
    monkeypatch.setattr("addnorm.report.html.page.Chart.static_svg", "a static image")


def study_of(folder, outcome=None, **keys):
    return Study.open(
        write_synthetic_study(folder / "study", parse_comparison(SMALL | keys), outcome)
    )


def map_cells(text):
    """Return the texts of the stability map's cells for screen readers."""
    return re.findall(r'<span class="visually-hidden">([^<]*)</span><span class="cell-loss">', text)


def test_page_has_all_sections_in_order(tmp_path, no_vega):
    study = study_of(tmp_path, warmup=[0, 50])
    text = render_comparison_page(study)
    assert re.findall(r"<h2>(.*?)</h2>", text) == [
        "Summary",
        "Stability map",
        "Loss curves",
        "Site metrics",
        "Arms",
        "Sample outputs",
        "Reproduce",
    ]
    first, second, *others = study.verdict
    assert f'<p class="large">{first}</p>' in text and f'<p class="large">{second}</p>' in text
    assert all(f"<li>{sentence}</li>" in text for sentence in others)
    baseline = get_task("translate").baseline_description
    rules = format_rules(baseline)
    assert f"Dashed line: the baseline, which is the loss of {baseline}." in text
    assert rules.replace("'", "&#39;") in text
    assert "The baseline of this comparison is 3.000 nats." in text
    assert "over the seeds that trained, at most 2." in text
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_summary_table_shows_ranges_outcomes_and_estimates(tmp_path, no_vega):
    text = render_comparison_page(study_of(tmp_path, warmup=[0, 50]))
    table = text[text.index("Arms by depth") : text.index("Stability map</h2>")]
    nowrap = '<span class="nowrap">'
    assert f"{nowrap}no warm-up: none</span><br>{nowrap}warm-up 50: 0.001</span>" in table
    assert '<span class="chip is-stuck" title="2 stuck">' in table
    assert "<div>best</div>" in table and "MB" in table and "\xa0±\xa0" in table


def test_long_notes_of_a_setting_may_wrap(tmp_path, no_vega):
    """On a narrow screen they would otherwise leave their card."""
    study = study_of(tmp_path, lambda cell: "stuck")
    (note,) = {line.format_best().partition(" (")[2] for line in study.summary}
    text = render_comparison_page(study)
    assert f'<span class="nowrap">none trained</span> ({note}' in text


def test_task_of_ones_own_has_notes_of_its_own(tmp_path, no_vega):
    (tmp_path / "own.py").write_text("def train(cell):\n    return {'valid_loss': 1.0}\n")
    spec = parse_comparison({"task": f"{tmp_path / 'own.py'}:train", "lr": 1e-3, "seeds": 1})
    study = run_comparison(spec, tmp_path / "study", engine=SameProcessEngine())
    text = render_comparison_page(study)
    assert "A task of your own has no sample outputs." in text
    assert "drawn from the recorded forward pass" not in text


def test_gap_of_a_metric_to_maximize_has_the_sign_of_the_metric(tmp_path):
    study = study_of(tmp_path, wiring="pre_ln,b2t", lr=1e-3)
    line = next(each for each in study.summary if not each.leads)
    line = replace(line, behind=Estimate(0.2, 0.1, 3))
    assert _format_gap(line).replace("\N{NO-BREAK SPACE}", " ") == "+0.200 ± 0.100"
    line = replace(line, objective=Objective("accuracy", "accuracy", maximize=True))
    assert _format_gap(line).startswith("-0.200")
    assert f"accuracy {-line.loss.mean:.3f}" in str(line)


def test_column_of_scores_needs_scores(tmp_path, no_vega):
    study = study_of(tmp_path, task="lm")
    label = study.score.label
    assert f">{label}</th>" in render_comparison_page(study)
    unscored = study_of(tmp_path / "unscored", task="lm", score=0)
    unscored = replace(unscored, cells=tuple(map(without_scores, unscored.cells)))
    assert f">{label}</th>" not in render_comparison_page(unscored)


def without_scores(outcome):
    return replace(outcome, end=replace(outcome.end, scores={}))


def test_seeds_that_have_not_finished_are_not_called_one_seed(tmp_path, no_vega):
    page = render_comparison_page(study_of(tmp_path, lambda cell: "waiting"))
    assert "With one seed" not in page


def test_map_shows_outcomes_of_all_seeds(tmp_path, no_vega):
    def outcome(cell):
        return (
            "diverged" if cell.lr > 5e-3 and cell.seed else typical_outcome(replace(cell, lr=1e-3))
        )

    study = study_of(tmp_path, outcome)
    text = render_comparison_page(study)
    assert map_cells(text) == [
        "stuck",
        "1 of 2 stuck, 1 of 2 diverged",
        "trained",
        "1 of 2 trained, 1 of 2 diverged",
    ]
    assert "several symbols in one cell" in text
    assert "seed 1 diverged (loss nan: first in decoder site 3)" in text


def test_exported_map_places_every_segment(tmp_path):
    study = study_of(tmp_path, warmup=[0, "own"])
    spec = plot_stability_map(
        build_stability_map(study, make_arm_styles([arm.name for arm in study.spec.arms()]))
    ).spec
    segments = spec["datasets"]["values"]
    assert {(s["panel"], s["start"], s["state"]) for s in segments} == {
        ("post_ln, no warm-up", 0.0, "stuck"),
        ("post_ln, no warm-up", 1.0, "diverged"),
        ("pre_ln, no warm-up", 0.0, "trained"),
        ("pre_ln, no warm-up", 1.0, "diverged"),
        ("post_ln (own schedule)", 0.0, "trained"),
        ("post_ln (own schedule)", 1.0, "diverged"),
        ("pre_ln (own schedule)", 0.0, "trained"),
        ("pre_ln (own schedule)", 1.0, "diverged"),
    }
    assert set(spec["facet"]) >= {"field"}, "a facet of rows by columns misplaces panels"


def test_texts_of_users_are_escaped(tmp_path, no_vega):
    study = study_of(tmp_path, lambda cell: "crashed" if cell.seed else "trained")
    records = [{"source": f"{EVIL}{n}", "target": EVIL} for n in range(3)]
    write_corpus(tmp_path / "evil", "translate", splits={"train": records, "test": records})
    (study.folder / files.SCORE).rename(tmp_path / "old")
    (tmp_path / "evil").rename(study.folder / files.SCORE)
    cells = []
    for each in study.cells:
        end = replace(each.end, why=EVIL, samples=(EVIL, "other"))
        cells.append(replace(each, end=end))
    shared_data = replace(
        study.shared_data, data=EVIL, machine={"system": EVIL}, versions={"torch": EVIL}
    )
    text = render_comparison_page(replace(study, cells=tuple(cells), shared_data=shared_data))
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert") > 20
    assert "<td>✓</td>" in text


@pytest.mark.parametrize(
    "outcome, warning",
    [
        (lambda cell: "waiting", "No cell has finished yet."),
        (
            lambda cell: "waiting" if cell.seed else "trained",
            "4 of 8 cells have not finished; results may change.",
        ),
    ],
)
def test_unfinished_comparison_has_a_page(tmp_path, no_vega, outcome, warning):
    text = render_comparison_page(study_of(tmp_path, outcome))
    assert warning in text
    assert "waiting" in text


def test_comparison_that_was_not_started_has_a_page(tmp_path, no_vega):
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / files.SPEC).write_text(parse_comparison(SMALL).to_yaml())
    path = write_comparison_report(folder)
    text = path.read_text(encoding="utf-8")
    assert path == folder / files.REPORT
    assert "No losses yet: no cell has started." in text and "Site metrics: not measured." in text
    assert "No sample outputs" in text and "the comparison has not started" in text
    assert "<form" not in text


@pytest.mark.parametrize("task", ["lm", "classify"])
def test_one_arm_with_one_seed_at_one_rate(tmp_path, no_vega, task):
    study = study_of(tmp_path, task=task, wiring="pre_ln", lr=1e-3, seeds=1)
    text = render_comparison_page(study)
    assert "1 arm on" in text and "noise between seeds is unknown" in text
    assert map_cells(text) == ["trained"]
    group = build_loss_charts(ComparisonCharts.from_study(study))
    assert "Thin lines" not in group.charts[0].note
    selected = {each.field: each.default for each in group.selectors}
    spec = filter_spec(group.charts[0].spec, selected)
    styles = [layer["mark"].get("style") for layer in spec["layer"]]
    assert "means" in styles and "seeds" not in styles


def test_folder_without_comparison_is_user_error(tmp_path):
    with pytest.raises(
        UserError, match=r"expected the output folder of `addnorm compare`, got .*comparison\.yaml"
    ):
        write_comparison_report(tmp_path)


def test_sample_outputs_are_compared_with_expected_text(tmp_path, no_vega):
    text = render_comparison_page(study_of(tmp_path))
    part = text[text.index("Sample outputs</h2>") : text.index("Reproduce</h2>")]
    assert "<caption>May 1, 2001 &lt;i&gt;</caption>" in part
    assert part.count("<b>expected</b>") == 6
    assert part.count("<td>✓</td>") == 6, "pre_ln is correct, post_ln is stuck"
    assert "0.0.0 &lt;b&gt;" in part and "post_ln-d2-w0-lr0.001-s0 (stuck)" in part


def test_label_is_correct_regardless_of_probability(tmp_path, no_vega):
    study = study_of(tmp_path, task="classify", wiring="pre_ln")
    records = [{"text": "good (90%)", "label": "yes"}, {"text": "bad", "label": "no"}]
    write_corpus(study.folder / files.SCORE, "classify", splits={"train": records, "test": records})
    cells = tuple(
        replace(each, end=replace(each.end, samples=("yes (93%)", "yes (51%)")))
        for each in study.cells
    )
    text = render_comparison_page(replace(study, cells=cells))
    assert text.count("<td>yes (93%)</td><td>✓</td>") == 1
    assert text.count("<td>yes (51%)</td><td></td>") == 1


def test_reproduce_section_lists_commands_and_cells(tmp_path, no_vega):
    study = study_of(tmp_path)
    text = render_comparison_page(study)
    part = text[text.index("Reproduce</h2>") :]
    assert f"addnorm compare -c {study.folder}/comparison.yaml -o again" in part
    cell = "pre_ln-d2-w0-lr0.001-s"
    assert re.search(rf"addnorm train translate -c \S+/cells/{cell}\d/config.yaml -o weights", part)
    assert study.spec.digest in part and "a &lt;b&gt;processor" in part
    for each in study.cells:
        assert f"<td>cells/{each.cell.name}</td>" in part
    assert part.count("loss nan: first in decoder site 3") >= 4


def test_mean_ends_with_shortest_seed_and_failures_are_marked(tmp_path):
    study = study_of(tmp_path, lambda cell: "diverged" if cell.seed else "trained", wiring="pre_ln")
    charts = ComparisonCharts.from_study(study)
    data = build_loss_charts(charts).charts[0].spec["datasets"]
    last = {row["seed"]: row["step"][-1] for row in data["curves"] if "lr 0.001" in row["at"]}
    assert last["0"] == 100 and last["1"] == last["mean"] == 59
    assert {row["label"] for row in data["failures"]} == {"diverged, last value at step 59"}
    assert charts.study_curves.num_nonfinite == 4, (
        "in training and validation, at two learning rates"
    )


def test_specs_are_valid_json(tmp_path):
    charts = ComparisonCharts.from_study(study_of(tmp_path))
    for group in (build_loss_charts(charts), build_site_charts(charts)):
        for chart in group.charts:
            json.dumps(chart.spec, allow_nan=False)


def test_sites_are_shown_at_first_and_later_steps(tmp_path):
    charts = ComparisonCharts.from_study(study_of(tmp_path))
    group = build_site_charts(charts)
    titles = ["Gradient norm", "Stream variance", "Residual dependency", "Update size"]
    assert [chart.title for chart in group.charts] == titles
    step, stack = group.selectors[1:]
    assert next(iter(step.groups[""].values())) == "at initialization (step 1)"
    assert stack.default == "decoder" and list(stack.groups[""]) == ["encoder", "decoder"]
    selected = {each.field: each.default for each in group.selectors}
    rows = filter_spec(group.charts[0].spec, selected)["datasets"]["curves"]
    assert [(row["arm"], len(row["value"])) for row in rows] == [("post_ln", 6), ("pre_ln", 6)]
    assert rows[0]["value"][-1] == pytest.approx(0.1 * 1.1**5, rel=1e-3)


def test_site_values_beyond_budget_are_omitted(tmp_path, monkeypatch):
    monkeypatch.setattr("addnorm.report.comparison.site_charts.MAX_VALUES", 600)
    charts = ComparisonCharts.from_study(study_of(tmp_path))
    group = build_site_charts(charts)
    shown = {key for row in group.charts[0].spec["datasets"]["curves"] for key in row["show"]}
    assert charts.default.key in shown
    assert "are omitted to limit the page's size" in group.below[0].parts[-1].text


def test_most_contrasting_setting_is_the_default(tmp_path):
    study = study_of(tmp_path, depth=[2, 3], lr=[1e-2, 1e-3])
    selections = build_selections(study)
    assert find_most_contrasting(study, selections).key == "depth-3-lr-0.001-no-warm-up"
    assert selections[0].label == "each arm at its best setting"


def test_default_setting_is_one_at_which_arms_trained(tmp_path):
    """Also if all arms trained or failed together at every setting."""
    study = study_of(
        tmp_path,
        outcome=lambda cell: "trained" if cell.lr == 1e-3 else "stuck",
        wiring="pre_ln,b2t",
        lr=[3e-4, 1e-3, 3e-3],
    )
    assert "lr-0.001" in find_most_contrasting(study, build_selections(study)[1:]).key


def test_rows_of_superseded_attempts_are_dropped(tmp_path):
    study = study_of(tmp_path, wiring="pre_ln", lr=1e-3)
    path = study.folder / files.CELLS / study.cells[0].cell.name / "rows.jsonl"
    lines = path.read_text().splitlines()
    repeated = [line for line in lines if '"step": 9' in line]
    path.write_text("\n".join([*lines[:-30], *repeated, *lines[-30:]]) + "\n")
    steps = [step for step, _ in StudyCurves.from_study(study).cells[0].full_train]
    assert steps == sorted(set(steps))


def test_finished_cells_without_rows_have_a_page(tmp_path, no_vega):
    study = study_of(tmp_path)
    for each in study.cells:
        (study.folder / files.CELLS / each.cell.name / "rows.jsonl").unlink()
    assert "No losses yet" in render_comparison_page(study)


def contrast(one, other):
    def luminance(color):
        parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colors_have_enough_contrast(theme):
    paper = get_page_colors(theme)["paper"]
    assert min(contrast(color, paper) for color in ARM_COLORS[theme]) > 2.8
    assert min(contrast(*pair) for pair in OUTCOME_COLORS[theme].values()) > 4.5


def test_thirty_arms_have_distinct_styles():
    styles = list(make_arm_styles([f"arm {n}" for n in range(30)]).values())
    assert len({(style.color, style.shape, style.dash) for style in styles}) == 30
    assert len({style.color for style in styles[:8]}) == 8


def test_map_cell_describes_its_seeds(tmp_path):
    study = study_of(tmp_path, lambda cell: "crashed", wiring="pre_ln", lr=1e-3)
    cell = StabilityCell.from_cells(study.cells)
    assert cell.outcome_text == "crashed" and cell.loss_text == ""
    assert cell.seeds_text == "seed 0 crashed (out of memory); seed 1 crashed (out of memory)"
    assert CellResult.read(study.folder / files.CELLS / study.cells[0].cell.name).why


@pytest.mark.slow
def test_two_hundred_cells_fit_on_a_page(tmp_path):
    study = study_of(
        tmp_path,
        wiring="post_ln,pre_ln,b2t,rezero,deepnorm",
        depth=[6, 12],
        warmup=[0, 100],
        lr=[3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
        steps=200,
    )
    assert len(study.cells) == 200
    path = write_comparison_report(study.folder)
    assert path.stat().st_size < 6_000_000
    text = path.read_text(encoding="utf-8")
    assert text.count('class="static"><svg') == 6
    assert len(map_cells(text)) == 100


@pytest.mark.slow
def test_many_arms_have_a_page(tmp_path, no_vega):
    wirings = "post_ln,pre_ln,b2t,rezero,deepnorm,res_post,mix_ln,admin,sandwich,sub_ln,keel,gated"
    study = study_of(tmp_path, wiring=wirings, norm="layer,rms", lr=1e-3, seeds=1, steps=20)
    text = render_comparison_page(study)
    assert len(map_cells(text)) == len(study.spec.arms()) == 23
    assert "stroke-dasharray" in text
