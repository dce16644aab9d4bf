"""Mistakes that were released by somebody: found, and not seen where they are not."""

import pytest
import torch

import addnorm
from tests.doctor.models.released_bugs import CASES

# A quarter of them by default: each is a model of its own.
NAMES = [
    name if place % 4 == 0 else pytest.param(name, marks=pytest.mark.slow)
    for place, name in enumerate(CASES)
]


def loud(name, bug):
    rule, build, given = CASES[name]
    torch.manual_seed(0)
    report = addnorm.doctor(build(bug), given())
    return rule, report.findings


@pytest.mark.parametrize("name", NAMES)
def test_a_historic_mistake_is_found(name):
    rule, findings = loud(name, True)
    assert {finding.rule for finding in findings} & set(rule.split("|"))


@pytest.mark.parametrize("name", NAMES)
def test_its_healthy_twin_is_left_in_peace(name):
    _, findings = loud(name, False)
    assert [finding for finding in findings if finding.severity != "info"] == []
