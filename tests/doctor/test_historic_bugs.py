"""Mistakes reported in public repositories: found in the buggy form, no alarm on the fixed form."""

import pytest

from tests.doctor.models.historic import iter_cases, later

CASES = [case for held_out in (False, True) for _, case in iter_cases(held_out=held_out)]
CASES += later.CASES
# Every sixth case runs by default, the others are slow tests.
PARAMETERS = [
    pytest.param(case, id=case.name, marks=() if number % 6 == 0 else pytest.mark.slow)
    for number, case in enumerate(CASES)
]


def test_names_and_sources_are_unique():
    assert len(CASES) == len({case.name for case in CASES}) == len({case.source for case in CASES})


@pytest.mark.parametrize("case", PARAMETERS)
def test_historic_bug_is_found(case):
    is_found = bool({finding.rule for finding in case.findings(bug=True)} & case.rules)
    assert is_found is (case.name not in later.KNOWN_MISSES)


@pytest.mark.parametrize("case", PARAMETERS)
def test_fixed_form_has_no_alarm(case):
    assert [f for f in case.findings(bug=False) if f.severity != "info"] == []
