"""Mistakes reported in public repositories: found in the buggy form, no alarm on the fixed form."""

import pytest

from tests.doctor.models.historic import iter_cases

CASES = [case for held_out in (False, True) for _, case in iter_cases(held_out=held_out)]
# Every sixth case runs by default, the others are slow tests.
PARAMETERS = [
    pytest.param(case, id=case.name, marks=() if number % 6 == 0 else pytest.mark.slow)
    for number, case in enumerate(CASES)
]


def test_there_are_sixty_cases_of_different_sources():
    assert len(CASES) == len({case.name for case in CASES}) == 60
    assert len({case.source for case in CASES}) == 60


@pytest.mark.parametrize("case", PARAMETERS)
def test_historic_bug_is_found(case):
    assert {finding.rule for finding in case.findings(bug=True)} & case.rules


@pytest.mark.parametrize("case", PARAMETERS)
def test_fixed_form_has_no_alarm(case):
    assert [f for f in case.findings(bug=False) if f.severity != "info"] == []
