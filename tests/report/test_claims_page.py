"""The page of claims: content, escaping and charts."""

import math
import re
from dataclasses import replace

import pytest
from markupsafe import escape

from addnorm.claims import ChartSpec, registry, run_claims
from addnorm.claims.checks import RULE, Check, Verdict
from addnorm.claims.result import Result
from addnorm.comparison.statistics import Estimate
from addnorm.core.errors import UserError
from addnorm.report.charts.claims import plot_claim
from addnorm.report.claims_page import (
    ANSWER_ORDER,
    render_claims_markdown,
    render_claims_page,
    write_claims_report,
)
from addnorm.report.html.page import Note

EVIL = "<script>alert('&')</script>"


@pytest.fixture
def no_vega(monkeypatch):
    """Skip the Vega bundle and static images, which take seconds."""
    monkeypatch.setattr("addnorm.report.html.page._vega_script", lambda: "/* vega */")
    monkeypatch.setattr("addnorm.report.html.page.Chart.static_svg", "a static image")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("claims")
    return run_claims(["layer_norm_length", "rank_collapse"], folder, budget="smoke")


def test_every_claim_has_all_parts(results, no_vega):
    text = render_claims_page(results)
    heads = re.findall(r"<h2>(.*?)</h2>", text)
    order = sorted(results, key=lambda name: ANSWER_ORDER[results[name].answer])
    assert heads == ["Verdicts", *(registry.card(name).title for name in order)]
    for name, result in results.items():
        claim = registry.member(name)()
        assert str(escape(result.verdict.why)) in text
        assert str(escape(claim.pilot)) in text
        assert text.count(str(escape(claim.summarize(result.verdict)))) == 2  # table and section
    assert "Not run yet: " in text and "last_gradient" in text
    for name, result in results.items():
        card, claim = registry.card(name), registry.member(name)()
        for part in (card.summary, card.paper, claim.paper_location, claim.rule, result.command):
            assert part in text.replace("&#39;", "'").replace("&gt;", ">").replace("&lt;", "<")
        assert claim.experiment[:60] in text
        for check in result.verdict.checks:
            assert check.format() in text and check.expected_range in text
    assert text.count("is-trained") > 3 and RULE[:50] in text
    assert 'href="#s2"' in text


def test_crash_message_is_escaped(results, no_vega):
    crashed = replace(results["rank_collapse"], verdict=None, why=EVIL, rows=())
    text = render_claims_page({"rank_collapse": crashed})
    assert EVIL not in text and "The claim crashed: &lt;script&gt;" in text
    assert "! crashed" in text


def test_changed_settings_are_stated(results, no_vega):
    old = replace(results["rank_collapse"], digest="another")
    assert "have changed since it was run" in render_claims_page({"rank_collapse": old})


def test_claims_that_did_not_hold_come_first(results):
    verdicts = {"held": Estimate(1.0, 0.1, 3), "undecided": Estimate(0.0, 1.0, 3)}
    verdicts |= {"not held": Estimate(-1.0, 0.1, 3)}
    names = iter(["last_gradient", "residual_dependency", "one_update"])
    ordered = {
        name: Result(
            claim=name, budget="smoke", digest="", verdict=Verdict((Check("a|b", est, low=0),))
        )
        for name, est in zip(names, verdicts.values(), strict=True)
    }
    text = render_claims_markdown(ordered)
    table = [line for line in text.splitlines() if line.startswith("| [`")]
    answers = [line.split(" | ")[1].partition(",")[0] for line in table]
    assert answers == ["not held", "undecided", "held"]
    for name, line in zip(
        ("one_update", "residual_dependency", "last_gradient"), table, strict=True
    ):
        assert line.startswith(f"| [`{name}`](#{name}) |") and f"\n### {name}\n" in text
        assert line.count(" | ") == 4  # a claim is one row, and its checks are not in it


def test_checks_are_folded_away(results, no_vega):
    page, text = render_claims_page(results), render_claims_markdown(results)
    folded = r"<details>.*?</details>"
    for result in results.values():
        for check in result.verdict.checks:
            line = f"- {check.what}: {check.format()}"
            assert line in text and line not in re.sub(folded, "", text, flags=re.DOTALL)
            row = str(escape(check.what))
            assert row in page and row not in re.sub(folded, "", page, flags=re.DOTALL)


def test_not_held_claim_says_what_was_different(results, no_vega):
    checks = (Check("slope of post_ln", Estimate(1.0, 0.1, 3), high=0),)
    result = Result(claim="gradient_product", budget="smoke", digest="", verdict=Verdict(checks))
    discussion = registry.member("gradient_product").discussion
    assert discussion in render_claims_markdown({"gradient_product": result})
    assert str(escape(discussion)) in render_claims_page({"gradient_product": result})
    held = replace(result, verdict=Verdict((replace(checks[0], high=2.0),)))
    assert discussion not in render_claims_markdown({"gradient_product": held})


def test_corrected_rules_are_marked():
    def marked(name):
        verdict = Verdict((Check("x", Estimate(1.0, 0.1, 3), low=0),))
        result = Result(claim=name, budget="smoke", digest="", verdict=verdict)
        return render_claims_markdown({name: result})

    assert "| held, by a corrected rule |" in marked("scale_norm_helps_little_data")
    assert "| held, by a rule corrected before this run |" in marked("b2t_trains_deep")
    assert "| held |" in marked("one_update")


def test_missing_claims_are_listed_with_their_command(results):
    text = render_claims_markdown(results)
    (line,) = [line for line in text.splitlines() if line.startswith("Not run yet")]
    assert (
        "`addnorm claims run " in line and "last_gradient" in line and "rank_collapse" not in line
    )


def test_folder_without_claims_is_user_error(tmp_path):
    with pytest.raises(
        UserError, match=r"no claims in .*; use the output folder of `addnorm claims run`"
    ):
        write_claims_report(tmp_path)


ROWS = [
    {"name": "y", "arm": arm, "x": x, "seed": seed, "value": x * (1 + seed)}
    for arm in ("a", "b")
    for x in (1, 10)
    for seed in (0, 1)
]


def test_chart_has_means_and_intervals_of_each_arm():
    chart = plot_claim(ChartSpec(name="y", x="x", y="value", log_x=True), ROWS, "title")
    values = chart.spec["datasets"]["values"]
    assert [(row["arm"], row["x"], row["value"]) for row in values] == [
        ("a", 1, 1.5),
        ("b", 1, 1.5),
        ("a", 10, 15.0),
        ("b", 10, 15.0),
    ]
    assert values[0]["low"] == pytest.approx(1.5 - 12.706 * 0.5, rel=1e-3)
    assert "95 % intervals" in chart.note


def test_log_axis_has_positive_values_only():
    rows = [*ROWS, {"name": "y", "arm": "a", "x": 1, "seed": 2, "value": 0.0}]
    chart = plot_claim(ChartSpec(name="y", x="x", y="value", log_y=True), rows, "title")
    assert all(row["low"] > 0 and row["value"] > 0 for row in chart.spec["datasets"]["values"])


def test_guides_and_field_labels_are_drawn():
    rows = [row | {"warmup": 0 if row["arm"] == "a" else 9, "depth": 3} for row in ROWS]
    chart_spec = ChartSpec(
        name="y", x="x", y="value", group_by=("warmup", "depth"), guides=((5.0, "half way"),)
    )
    chart = plot_claim(chart_spec, rows, "title")
    arms = {row["arm"] for row in chart.spec["datasets"]["values"]}
    assert arms == {"no warm-up, 3 layers", "warm-up 9, 3 layers"}
    assert chart.spec["datasets"]["guides"] == [{"value": 5.0, "label": "half way"}]


def test_chart_without_finite_values_is_a_note():
    rows = [{"name": "y", "arm": "a", "x": 1, "seed": 0, "value": math.nan}]
    assert isinstance(plot_claim(ChartSpec(name="y", x="x", y="value"), rows, "title"), Note)
    assert isinstance(plot_claim(ChartSpec(name="y", x="x", y="value"), [], "title"), Note)


def test_page_contains_static_images(results, tmp_path):
    for result in results.values():
        result.save(tmp_path / result.claim)
    text = write_claims_report(tmp_path).read_text(encoding="utf-8")
    assert text.count("<svg") >= len(results)
