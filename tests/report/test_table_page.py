"""The page of a fitted table model."""

import re

import pytest

from addnorm.report.table_page import render_fit_page, write_fit_report
from addnorm.tabular.fit_run import FitConfig, FitResult
from tests.report.browser import Browser, needs_browser
from tests.tabular.sample_tables import FRAME, LABELS, classifier


def fit_result(model, *, options=None, **scores):
    config = FitConfig(
        table="t.csv", target="y", task="classify", holdout=0.0, seed=0, params={"model": model}
    )
    estimator = classifier(model=model, max_epochs=1, **options or {}).fit(FRAME, LABELS)
    return FitResult(config, estimator, trained=len(FRAME), **scores)


def page_of(model, **scores):
    return render_fit_page(fit_result(model, **scores))


@pytest.mark.parametrize(
    ("model", "has", "lacks"),
    [
        ("ft_transformer", ("Self-attention", "piecewise", "heads"), ("between rows",)),
        ("tab_transformer", ("Self-attention", "heads"), ("piecewise", ">numeric<")),
        ("saint", ("Self-attention", "Attention between rows"), ("piecewise",)),
        ("mlp", ("Feed-forward", "piecewise"), ("Self-attention", ">heads<")),
    ],
)
def test_model_section_shows_only_what_the_model_has(model, has, lacks):
    page = page_of(model)
    start = page.rindex(">Model<")
    section = re.sub(r"\s+", " ", page[start : page.index(">Columns<", start)])
    for text in has:
        assert text in section, text
    for text in lacks:
        assert text not in section, text


def test_networks_of_bagging_are_counted():
    page = render_fit_page(fit_result("mlp", options={"bagging": 3, "members": 2}))
    section = re.sub(r"<[^>]*>|\s+", " ", page[page.rindex(">Model<") :])
    assert re.search(r"members\s+2\s+networks\s+3\s", section)


def test_importance_section_names_its_method():
    permuted, attended = (
        page_of("ft_transformer"),
        render_fit_page(fit_result("ft_transformer", options={"importance": "rollout"})),
    )
    assert "Permutation importance:" in permuted and "Attention rollout:" not in permuted
    assert "Attention rollout:" in attended


def test_failed_gradient_boosting_is_stated():
    page = page_of("mlp", tested=3, scores={"addnorm": {"accuracy": 0.5}}, note="It could not.")
    assert "It could not." in page and "Accuracy 0.5 on 3 held-out rows" in page


@pytest.mark.parametrize(
    ("ours", "trees", "relation"), [(0.5, 0.4, "worse"), (0.5, 0.6, "better"), (0.5, 0.5, "equal")]
)
def test_headline_compares_with_gradient_boosting(ours, trees, relation):
    scores = {"addnorm": {"accuracy": ours}, "gradient boosting": {"accuracy": trees}}
    assert f"Gradient boosting: {trees:g}, {relation}." in page_of("mlp", tested=3, scores=scores)


@pytest.mark.slow
@needs_browser
def test_page_is_interactive_without_warnings(tmp_path):
    path = write_fit_report(tmp_path, fit_result("ft_transformer"))
    with Browser() as browser:
        browser.open(path, width=1280, height=4000)
        browser.wait_for("!document.querySelector('.static')")
        assert browser.evaluate("document.querySelectorAll('.live svg.marks').length") >= 2
        assert browser.errors == []
