"""The review: every bug is found and explained, and no fixed or healthy model has an alarm."""

import pytest

from tests.doctor.models import review


def sample(cases):
    """Return parameters of which every tenth runs by default; the others are slow tests."""
    return [
        pytest.param(case, id=case.name, marks=() if number % 10 == 0 else pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def test_every_bug_has_a_verdict_and_a_source():
    assert set(review.VERDICTS) == set(review.CASES)
    assert all(case.source.startswith("https://github.com/") for case in review.CASES.values())
    assert {"adapt_image_models_drop_path"} == review.KNOWN_MISSES


@pytest.mark.parametrize("case", sample(review.CASES.values()))
def test_bug_is_found(case):
    is_found = review.is_found(case, review.examine_case(case, broken=True))
    assert is_found is (case.name not in review.KNOWN_MISSES)


@pytest.mark.parametrize("case", sample(review.CASES.values()))
def test_fixed_form_has_no_alarm(case):
    assert review.examine_case(case, broken=False) == []


@pytest.mark.parametrize("model", sample(review.HEALTHY.values()))
def test_healthy_model_has_no_alarm(model):
    assert review.examine_healthy(model) == []
