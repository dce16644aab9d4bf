"""Mistakes of released models: found in the original, absent after the fix."""

import pytest
import torch

import addnorm
from tests.doctor.models import recurring_bugs  # noqa: F401  registers its cases
from tests.doctor.models.released_bugs import CASES

# Every fourth case runs by default, the others are slow tests.
NAMES = [
    name if number % 4 == 0 else pytest.param(name, marks=pytest.mark.slow)
    for number, name in enumerate(CASES)
]


def run_case(name, bug):
    rule, build, inputs = CASES[name]
    torch.manual_seed(0)
    report = addnorm.doctor(build(bug), inputs())
    return rule, report.findings


@pytest.mark.parametrize("name", NAMES)
def test_released_bug_is_found(name):
    rule, findings = run_case(name, True)
    assert {finding.rule for finding in findings} & set(rule.split("|"))


@pytest.mark.parametrize("name", NAMES)
def test_fixed_version_has_no_findings(name):
    _, findings = run_case(name, False)
    assert [finding for finding in findings if finding.severity != "info"] == []
