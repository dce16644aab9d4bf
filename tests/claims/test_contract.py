"""Requirements on every claim: a card, three budgets and a working smoke run."""

import re

import pytest

from addnorm.claims import BUDGETS, registry, run_claims
from addnorm.claims.result import Result
from addnorm.claims.training_claims import ComparisonClaim
from addnorm.comparison.tasks import get_task
from addnorm.norms.base import registry as norms
from addnorm.report.charts.claims import plot_claim
from addnorm.report.html.page import Chart
from addnorm.wirings.base import registry as wirings
from tests.claims.synthetic_rows import ROWS
from tests.comparison.same_process_engine import SameProcessEngine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of all claims, so that they share cells."""
    return tmp_path_factory.mktemp("claims")


@pytest.mark.parametrize("name", registry)
def test_claim_has_all_texts_of_the_report(name):
    card, claim = registry.card(name), registry.member(name)()
    assert type(claim).__module__ == f"addnorm.claims.catalogue.{name}"
    assert card.summary.endswith(".") and card.formula and card.title and card.year
    assert claim.paper_location and claim.experiment.endswith(".") and claim.rule.endswith(".")
    assert claim.method in ("at the start", "by training")
    assert len({claim.digest(budget) for budget in BUDGETS}) == 3
    assert all(claim.cost(budget) for budget in BUDGETS)


@pytest.mark.parametrize("name", registry)
def test_summary_is_one_sentence_with_all_numbers(name):
    claim = registry.member(name)()
    verdict = claim.judge(list(ROWS[name](True, 0.01)))
    labels = set(re.findall(r"\{(?:exp:)?([^{}]+)\}", claim.finding))
    # Depths, lengths and steps are part of some labels and smaller in synthetic rows.
    known = {re.sub(r"\d+", "0", check.what) for check in verdict.checks}
    assert labels and {re.sub(r"\d+", "0", label) for label in labels} <= known
    sentence = claim.summarize(verdict)
    assert sentence.endswith(f" ({claim.measured_on}; {claim.reach}).")
    assert "{" not in sentence and ". " not in sentence.replace(" . ", " ")


@pytest.mark.parametrize("name", registry)
def test_subjects_of_a_claim_are_wirings_or_norms(name):
    about = registry.member(name).about
    assert all(each in wirings or each in norms for each in about)
    assert about or name == "attention_resists_corrupted_cells"  # it is about attention


@pytest.mark.parametrize("name", registry)
def test_standard_budget_has_enough_seeds(name):
    claim = registry.member(name)()
    for budget in ("standard", "full"):
        settings = claim.settings(budget)
        seeds = (
            [settings["seeds"]]
            if "seeds" in settings
            else [spec["seeds"] for spec in settings.values() if "seeds" in spec]
        )
        assert min(seeds) >= 3


@pytest.mark.parametrize("name", registry)
def test_smoke_run_yields_rows_chart_and_verdict(name, folder):
    result = run_claims([name], folder, budget="smoke", engine=SameProcessEngine())[name]
    assert result.verdict is not None, result.why
    claim = registry.member(name)()
    assert result.verdict == claim.judge(result.rows)
    assert all(check.found is not None or check.premise for check in result.verdict.checks)
    assert isinstance(plot_claim(claim.chart, result.rows, "title"), Chart)
    again = Result.read(folder / name)
    assert again.verdict.to_dict() == result.verdict.to_dict()
    assert [dict(row) for row in again.rows] == [dict(row) for row in result.rows]


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS)
def test_every_comparison_is_valid(budget):
    for name in registry:
        claim = registry.member(name)()
        if isinstance(claim, ComparisonClaim):
            for spec in claim.comparisons(budget).values():
                get_task(spec.task).check(spec)
