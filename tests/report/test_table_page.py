"""The page of a fit tells what the model has, and nothing that it does not have."""

import re

import pytest

from addnorm.report.table_page import render_fit_page
from addnorm.tabular.fit_run import FitConfig, FitResult
from tests.tabular.sample_tables import FRAME, LABELS, classifier


def page_of(model, **scores):
    config = FitConfig(
        table="t.csv", target="y", task="classify", holdout=0.0, seed=0, params={"model": model}
    )
    made = classifier(model=model, max_epochs=1).fit(FRAME, LABELS)
    return render_fit_page(FitResult(config, made, trained=len(FRAME), **scores))


@pytest.mark.parametrize(
    ("model", "has", "lacks"),
    [
        ("ft_transformer", ("Self-attention", "piecewise", "heads"), ("between rows",)),
        ("tab_transformer", ("Self-attention", "heads"), ("piecewise", ">numbers<")),
        ("saint", ("Self-attention", "Attention between rows"), ("piecewise",)),
        ("mlp", ("Feed-forward", "piecewise"), ("Self-attention", ">heads<")),
    ],
)
def test_the_models_own_stack_is_drawn(model, has, lacks):
    page = page_of(model)
    start = page.rindex("What is wired")
    section = re.sub(r"\s+", " ", page[start : page.index("The columns", start)])
    for words in has:
        assert words in section, words
    for words in lacks:
        assert words not in section, words


def test_a_rival_that_failed_is_told():
    page = page_of("mlp", tested=3, scores={"addnorm": {"accuracy": 0.5}}, note="It could not.")
    assert "It could not." in page and "accuracy 0.5 on 3 rows" in page
