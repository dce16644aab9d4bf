"""The rule of every claim on rows whose verdict is known."""

from itertools import product

import pytest

from addnorm.claims import registry
from addnorm.claims.training_claims import TrainedClaim
from tests.claims.synthetic_rows import ROWS

TRAINED = [name for name in registry if issubclass(registry.member(name), TrainedClaim)]
TURNS = (
    lambda value, place: 0.0,
    lambda value, place: 3 * value + 1,
    lambda value, place: -value,
    lambda value, place: 1 - value,
    lambda value, place: value + place,
    lambda value, place: 1.5**place,
    lambda value, place: 0.5**place,
)
"""Corruptions of a group of rows: zero, far too large, reversed, ..."""
PARTS = (
    ("name",),
    ("name", "lr"),
    ("name", "arm", "study", "warmup", "which", "matrices"),
    ("name", "arm", "study", "lr"),
    ("name", "depth"),
)
"""Fields that separate groups of rows."""


def judged(name, *, good, noise=0.0, seeds=4):
    rows = [row for row in ROWS[name](good, noise) if row["seed"] < seeds]
    return registry.member(name)().judge(rows)


def test_every_claim_has_synthetic_rows():
    assert set(ROWS) == set(registry)


@pytest.mark.parametrize("name", registry)
def test_predicted_rows_are_held(name):
    verdict = judged(name, good=True)
    assert verdict.answer == "held", verdict
    assert len({check.what for check in verdict.checks}) == len(verdict.checks)


@pytest.mark.parametrize("name", registry)
def test_opposite_rows_are_not_held(name):
    assert judged(name, good=False).answer == "not held"


@pytest.mark.parametrize("name", registry)
def test_noisy_rows_are_undecided(name):
    verdict = judged(name, good=True, noise=0.4)
    assert verdict.answer == "undecided", verdict


@pytest.mark.parametrize("name", registry)
def test_one_seed_is_undecided(name):
    assert judged(name, good=True, seeds=1).answer == "undecided"
    assert judged(name, good=False, seeds=1).answer == "undecided"


@pytest.mark.parametrize("name", registry)
def test_no_rows_are_undecided(name):
    assert registry.member(name)().judge([]).answer == "undecided"


@pytest.mark.parametrize("name", TRAINED)
def test_rows_without_progress_are_undecided(name):
    rows = [{**row, "value": 0.0 if row["name"] in ("progress", "valid") else row["value"]}
            for row in ROWS[name](True, 0.0)]  # fmt: skip
    assert registry.member(name)().judge(rows).answer == "undecided"


@pytest.mark.parametrize("name", TRAINED)
def test_best_rate_at_edge_of_sweep_is_undecided(name):
    rows = [
        row for row in ROWS[name](True, 0.0) if row.get("lr") != 1e-2 or row["study"] == "clock"
    ]
    turned = [
        {**row, "value": 1.0 if row["lr"] == 1e-4 and row["name"] == "progress" else row["value"]}
        for row in rows
    ]
    assert registry.member(name)().judge(turned).answer == "undecided"


@pytest.mark.parametrize("name", registry)
def test_every_check_can_fail(name):
    """Corrupt one group of rows after the other until each check was not held once."""
    claim, rows = registry.member(name)(), list(ROWS[name](True, 0.0))
    left = {check.what for check in claim.judge(rows).checks if check.has_range}
    for fields, turn in product(PARTS, TURNS):
        for part in dict.fromkeys(_of(row, fields) for row in rows):
            if left:
                spoilt = [
                    {**row, "value": turn(row["value"], _place(row))}
                    if _of(row, fields) == part
                    else row
                    for row in rows
                ]
                left -= {c.what for c in _judged(claim, spoilt) if c.answer == "not held"}
    assert not left


def _judged(claim, rows):
    try:
        return claim.judge(rows).checks
    except ValueError:  # an impossible value, such as a negative speed
        return ()


def _of(row, fields):
    return tuple(row.get(field) for field in fields)


def _place(row):
    fields = ("layer", "step", "site", "number", "length", "dim", "eps")
    return next((row[field] for field in fields if field in row), row.get("depth", 0))
