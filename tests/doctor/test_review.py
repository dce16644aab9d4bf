"""The review: which bugs are found, and that fixed and healthy models have no alarm."""

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


def test_misses_are_counted_by_batch():
    misses = [review.CASES[name].batch for name in review.KNOWN_MISSES]
    assert [misses.count(batch) for batch in (1, 2, 3)] == [1, 0, 7]


@pytest.mark.parametrize("case", sample(review.CASES.values()))
def test_bug_is_found(case):
    is_found = review.is_found(case, review.examine_case(case, broken=True))
    assert is_found is (case.name not in review.KNOWN_MISSES)


@pytest.mark.parametrize("case", sample(review.CASES.values()))
def test_fixed_form_has_no_alarm(case):
    assert not review.examine_case(case, broken=False)


@pytest.mark.parametrize("model", sample(review.HEALTHY.values()))
def test_healthy_model_has_no_alarm(model):
    assert not review.examine_healthy(model)
