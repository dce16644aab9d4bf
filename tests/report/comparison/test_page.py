"""The page of a comparison: what it says, what it escapes, little and much of it."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from addnorm.report.comparison.comparison_reporter import (
    ComparisonCharts,
    build_loss_charts,
    build_site_charts,
)

from addnorm.comparison import layout as files
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.outcomes import format_rules
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.tasks import get_task
from addnorm.core.errors import UserError
from addnorm.data.corpus import write_corpus
from addnorm.report.comparison.cell_curves import StudyCurves
from addnorm.report.comparison.page import render_comparison_page, write_comparison_report
from addnorm.report.comparison.selections import build_selections, find_most_contrasting
from addnorm.report.comparison.stability import StabilityCell, map_chart, stability_map
from addnorm.report.html.chart_groups import filter_spec
from addnorm.report.html.page import page_colors
from addnorm.report.theme import ARM_COLORS, OUTCOME_COLORS, arm_styles
from tests.comparison.synthetic_study import made_up, usual_fate

EVIL = "<script>alert('&')</script>"
SMALL = {"wiring": "post_ln,pre_ln", "depth": 2, "lr": [1e-3, 1e-2], "seeds": 2, "steps": 100}


@pytest.fixture
def no_vega(monkeypatch):
    """Vega's script and still pictures take seconds to make; the browser's test looks at them."""
    monkeypatch.setattr("addnorm.report.html.page._vega", lambda: "/* vega */")
    monkeypatch.setattr("addnorm.report.html.page.Chart.static_svg", "a still picture")


def study_of(folder, fate=None, **keys):
    return Study.open(made_up(folder / "made", parse_comparison(SMALL | keys), fate))


def squares(text):
    """The map as it is heard: state by state, row by row."""
    return re.findall(r'<span class="hidden">([^<]*)</span><span class="number">', text)


def test_the_page_has_its_seven_sections_in_order(tmp_path, no_vega):
    study = study_of(tmp_path, warmup=[0, 50])
    text = render_comparison_page(study)
    assert re.findall(r"<h2>(.*?)</h2>", text) == [
        "The answer",
        "What trains where",
        "Loss curves",
        "Inside the models",
        "The arms",
        "What they answer",
        "How to do it again",
    ]
    first, second, *others = study.verdict
    assert f'<p class="large">{first}</p>' in text and f'<p class="large">{second}</p>' in text
    assert all(f"<li>{sentence}</li>" in text for sentence in others)
    told = format_rules(get_task("translate").baseline_description)
    assert (
        f"Dashed: the baseline, the loss of {get_task('translate').baseline_description}." in text
    )
    assert told.replace("'", "&#39;") in text and "Here the baseline is 3.000 nats." in text
    assert "over those of the 2 seeds that trained" in text
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_summary_tells_what_the_study_found(tmp_path, no_vega):
    text = render_comparison_page(study_of(tmp_path, warmup=[0, 50]))
    table = text[text.index("Each arm at each depth") : text.index("What trains where</h2>")]
    keep = '<span class="keep">'
    assert f"{keep}no warm-up: none</span><br>{keep}warm-up 50: 0.001</span>" in table
    assert '<span class="chip is-stuck" title="2 stuck">' in table
    assert "the best" in table and "MB" in table and "\xa0±\xa0" in table


def test_the_map_shows_every_square_and_what_became_of_its_seeds(tmp_path, no_vega):
    def fate(cell):
        return "diverged" if cell.lr > 5e-3 and cell.seed else usual_fate(replace(cell, lr=1e-3))

    study = study_of(tmp_path, fate)
    text = render_comparison_page(study)
    assert squares(text) == [
        "stuck",
        "1 of 2 stuck, 1 of 2 diverged",
        "trained",
        "1 of 2 trained, 1 of 2 diverged",
    ]
    assert "several signs in one square" in text
    assert "seed 1 diverged (loss nan: first in decoder site 3)" in text


def test_the_exported_map_puts_every_share_where_it_belongs(tmp_path):
    study = study_of(tmp_path, warmup=[0, "own"])
    spec = map_chart(stability_map(study, arm_styles([arm.name for arm in study.spec.arms()]))).spec
    shares = spec["datasets"]["values"]
    assert {(s["panel"], s["start"], s["state"]) for s in shares} == {
        ("post_ln, no warm-up", 0.0, "stuck"),
        ("post_ln, no warm-up", 1.0, "diverged"),
        ("pre_ln, no warm-up", 0.0, "trained"),
        ("pre_ln, no warm-up", 1.0, "diverged"),
        ("post_ln (own schedule)", 0.0, "trained"),
        ("post_ln (own schedule)", 1.0, "diverged"),
        ("pre_ln (own schedule)", 0.0, "trained"),
        ("pre_ln (own schedule)", 1.0, "diverged"),
    }
    assert set(spec["facet"]) >= {"field"}, "rows by columns move where one is missing"


def test_texts_of_users_are_text(tmp_path, no_vega):
    study = study_of(tmp_path, lambda cell: "crashed" if cell.seed else "trained")
    records = [{"source": f"{EVIL}{n}", "target": EVIL} for n in range(3)]
    write_corpus(tmp_path / "evil", "translate", splits={"train": records, "test": records})
    (study.folder / files.SCORE).rename(tmp_path / "old")
    (tmp_path / "evil").rename(study.folder / files.SCORE)
    cells = []
    for each in study.cells:
        end = replace(each.end, why=EVIL, samples=(EVIL, "other"))
        cells.append(replace(each, end=end))
    ground = replace(
        study.shared_data, data=EVIL, machine={"system": EVIL}, versions={"torch": EVIL}
    )
    text = render_comparison_page(replace(study, cells=tuple(cells), ground=ground))
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert") > 20
    assert "<td>✓</td>" in text


@pytest.mark.parametrize(
    "fate, said",
    [
        (lambda cell: "waiting", "Nothing has ended yet: this page fills as cells do."),
        (
            lambda cell: "waiting" if cell.seed else "trained",
            "4 of 8 cells have not ended: not the last word.",
        ),
    ],
)
def test_an_unfinished_comparison_has_a_page(tmp_path, no_vega, fate, said):
    text = render_comparison_page(study_of(tmp_path, fate))
    assert said in text
    assert "waiting" in text


def test_a_comparison_that_nobody_began_has_a_page(tmp_path, no_vega):
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / files.SPEC).write_text(parse_comparison(SMALL).to_yaml())
    path = write_comparison_report(folder)
    text = path.read_text(encoding="utf-8")
    assert path == folder / files.REPORT
    assert "Losses: no cell has begun." in text and "The inside: not measured." in text
    assert "No sample outputs" in text and "not prepared yet" in text
    assert "<form" not in text


@pytest.mark.parametrize("task", ["lm", "classify"])
def test_one_arm_with_one_seed_at_one_rate(tmp_path, no_vega, task):
    study = study_of(tmp_path, task=task, wiring="pre_ln", lr=1e-3, seeds=1)
    text = render_comparison_page(study)
    assert "1 arm on" in text and "nothing is known about noise" in text
    assert squares(text) == ["trained"]
    board = build_loss_charts(ComparisonCharts.from_study(study))
    assert "Thin: seeds" not in board.charts[0].note
    chosen = {choice.field: choice.default for choice in board.choices}
    styles = [
        layer["mark"].get("style") for layer in filter_spec(board.charts[0].spec, chosen)["layer"]
    ]
    assert "means" in styles and "seeds" not in styles


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"no comparison at .*: it has no comparison\.yaml"):
        write_comparison_report(tmp_path)


def test_answers_are_compared_with_what_was_wanted(tmp_path, no_vega):
    text = render_comparison_page(study_of(tmp_path))
    part = text[text.index("What they answer</h2>") : text.index("How to do it again</h2>")]
    assert "<caption>May 1, 2001 &lt;i&gt;</caption>" in part
    assert part.count("<b>wanted</b>") == 6
    assert part.count("<td>✓</td>") == 6, "pre_ln is right, post_ln is stuck"
    assert "0.0.0 &lt;b&gt;" in part and "post_ln-d2-w0-lr0.001-s0 (stuck)" in part


def test_labels_are_right_whatever_their_probability(tmp_path, no_vega):
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


def test_how_to_do_it_again_names_every_cell_and_command(tmp_path, no_vega):
    study = study_of(tmp_path)
    text = render_comparison_page(study)
    part = text[text.index("How to do it again</h2>") :]
    assert f"addnorm compare -c {study.folder}/comparison.yaml -o again" in part
    cell = "pre_ln-d2-w0-lr0.001-s"
    assert re.search(rf"addnorm train translate -c \S+/cells/{cell}\d/config.yaml -o weights", part)
    assert study.spec.digest in part and "a &lt;b&gt;processor" in part
    for each in study.cells:
        assert f"<td>cells/{each.cell.name}</td>" in part
    assert part.count("loss nan: first in decoder site 3") >= 4


def test_means_end_where_a_seed_ends_and_bad_ends_are_marked(tmp_path):
    study = study_of(tmp_path, lambda cell: "diverged" if cell.seed else "trained", wiring="pre_ln")
    got = ComparisonCharts.from_study(study)
    data = build_loss_charts(got).charts[0].spec["datasets"]
    last = {row["seed"]: row["step"][-1] for row in data["curves"] if "lr 0.001" in row["at"]}
    assert last["0"] == 100 and last["1"] == last["mean"] == 59
    assert {row["told"] for row in data["ends"]} == {"diverged, last value at step 59"}
    assert got.study_curves.num_nonfinite == 4, "in training and validation, at two learning rates"


def test_what_is_drawn_can_be_written_as_json(tmp_path):
    got = ComparisonCharts.from_study(study_of(tmp_path))
    for board in (build_loss_charts(got), build_site_charts(got)):
        for chart in board.charts:
            json.dumps(chart.spec, allow_nan=False)


def test_sites_are_shown_at_the_first_and_at_later_steps(tmp_path):
    got = ComparisonCharts.from_study(study_of(tmp_path))
    board = build_site_charts(got)
    titles = ["Gradient norm", "Variance of the stream", "Residual dependency", "Update size"]
    assert [chart.title for chart in board.charts] == titles
    when, stack = board.choices[1:]
    assert next(iter(when.groups[""].values())) == "at initialisation (step 1)"
    assert stack.default == "decoder" and list(stack.groups[""]) == ["encoder", "decoder"]
    chosen = {choice.field: choice.default for choice in board.choices}
    rows = filter_spec(board.charts[0].spec, chosen)["datasets"]["curves"]
    assert [(row["arm"], len(row["value"])) for row in rows] == [("post_ln", 6), ("pre_ln", 6)]
    assert rows[0]["value"][-1] == pytest.approx(0.1 * 1.1**5, rel=1e-3)


def test_too_many_sites_leave_room_for_the_most_telling(tmp_path, monkeypatch):
    monkeypatch.setattr("addnorm.report.comparison.site_charts.MAX_VALUES", 600)
    got = ComparisonCharts.from_study(study_of(tmp_path))
    board = build_site_charts(got)
    shown = {key for row in board.charts[0].spec["datasets"]["curves"] for key in row["show"]}
    assert got.default.key in shown
    assert "found no room on this page" in board.below[0].parts[-1].text


def test_the_setting_that_tells_arms_apart_is_shown_first(tmp_path):
    study = study_of(tmp_path, depth=[2, 3], lr=[1e-2, 1e-3])
    made = build_selections(study)
    assert find_most_contrasting(study, made).key == "depth-3-lr-0.001-no-warm-up"
    assert made[0].label == "each arm at its best setting"


def test_attempts_that_were_done_again_are_left_out(tmp_path):
    study = study_of(tmp_path, wiring="pre_ln", lr=1e-3)
    path = study.folder / files.CELLS / study.cells[0].cell.name / "rows.jsonl"
    lines = path.read_text().splitlines()
    again = [line for line in lines if '"step": 9' in line]
    path.write_text("\n".join([*lines[:-30], *again, *lines[-30:]]) + "\n")
    steps = [step for step, _ in StudyCurves.from_study(study).cells[0].full_train]
    assert steps == sorted(set(steps))


def test_a_judged_cell_without_rows_is_told_all_the_same(tmp_path, no_vega):
    study = study_of(tmp_path)
    for each in study.cells:
        (study.folder / files.CELLS / each.cell.name / "rows.jsonl").unlink()
    assert "Losses: no cell has begun." in render_comparison_page(study)


def contrast(one, other):
    def light(colour):
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_seen_and_read(theme):
    paper = page_colors(theme)["paper"]
    assert min(contrast(colour, paper) for colour in ARM_COLORS[theme]) > 2.8
    assert min(contrast(*pair) for pair in OUTCOME_COLORS[theme].values()) > 4.5


def test_no_two_of_thirty_arms_look_alike():
    made = arm_styles([f"arm {n}" for n in range(30)]).values()
    assert len({(look.color, look.shape, look.dash) for look in made}) == 30
    assert len({look.color for look in list(made)[:8]}) == 8


def test_squares_tell_their_seeds_in_words(tmp_path):
    study = study_of(tmp_path, lambda cell: "crashed", wiring="pre_ln", lr=1e-3)
    square = StabilityCell.from_cells(study.cells)
    assert square.outcome_text == "crashed" and square.loss_text == ""
    assert square.seeds_text == "seed 0 crashed (out of memory); seed 1 crashed (out of memory)"
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
    assert text.count('class="still"><svg') == 6
    assert len(squares(text)) == 100


@pytest.mark.slow
def test_many_arms_have_a_page(tmp_path, no_vega):
    wirings = "post_ln,pre_ln,b2t,rezero,deepnorm,res_post,mix_ln,admin,sandwich,sub_ln,keel,gated"
    study = study_of(tmp_path, wiring=wirings, norm="layer,rms", lr=1e-3, seeds=1, steps=20)
    text = render_comparison_page(study)
    assert len(squares(text)) == len(study.spec.arms()) == 23
    assert "stroke-dasharray" in text
