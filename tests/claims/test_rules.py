"""The rule of every claim on rows whose verdict is known."""

import pytest

from addnorm.claims import registry
from tests.claims.made_up import ROWS


def judged(name, *, good, noise=0.0, seeds=4):
    rows = [row for row in ROWS[name](good, noise) if row["seed"] < seeds]
    return registry.member(name)().judge(rows)


def test_every_claim_has_made_up_rows():
    assert set(ROWS) == set(registry)


@pytest.mark.parametrize("name", registry)
def test_what_it_wants_is_held(name):
    verdict = judged(name, good=True)
    assert verdict.answer == "held", verdict
    assert len({check.what for check in verdict.checks}) == len(verdict.checks)


@pytest.mark.parametrize("name", registry)
def test_the_opposite_is_not_held(name):
    assert judged(name, good=False).answer == "not held"


@pytest.mark.parametrize("name", registry)
def test_noise_leaves_it_undecided(name):
    verdict = judged(name, good=True, noise=0.4)
    assert verdict.answer == "undecided", verdict


@pytest.mark.parametrize("name", registry)
def test_one_seed_decides_nothing(name):
    assert judged(name, good=True, seeds=1).answer == "undecided"
    assert judged(name, good=False, seeds=1).answer == "undecided"


@pytest.mark.parametrize("name", registry)
def test_no_rows_decide_nothing(name):
    assert registry.member(name)().judge([]).answer == "undecided"
