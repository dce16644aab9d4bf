"""One scale of progress per field: equal cells get the same judgement in every claim."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.claims import registry
from addnorm.claims.deep_training_claims import VeryDeepClaim
from addnorm.claims.progress_scale import raw_progress, reference_progress, scale_progress
from addnorm.claims.training_claims import TrainedClaim
from tests.claims.synthetic_rows import ROWS, cells

DEEP = [name for name in registry if issubclass(registry.member(name), VeryDeepClaim)]
REMEDIES = [name for name in DEEP if name.endswith("_trains_deep")]
TRAINED = [name for name in registry if issubclass(registry.member(name), TrainedClaim)]
losses = st.floats(0.01, 6.0)


def deep_rows(arm, loss, *, post, pre, baseline=3.0, unit=1.0):
    """Return the rows of a deep claim from losses by seed; `unit` multiplies all progress."""
    rows = []
    for name, values in ((arm, loss), ("post_ln", post), ("pre_ln", pre)):
        for seed, value in enumerate(values):
            done = unit * raw_progress(value, baseline=baseline)
            for lr, share in ((1e-4, 0.5), (1e-3, 1.0), (1e-2, 0.5)):
                rows += [
                    {**row, "value": done * share}
                    for row in cells({name: 0.0}, lr=lr)
                    if row["seed"] == seed
                ]
    return rows


def verdict_of_post_ln(name, rows):
    (check,) = (c for c in registry.member(name)().checks(rows) if c.what == "progress of post_ln")
    return check


@settings(max_examples=25, deadline=None)
@given(
    post=st.tuples(*[losses] * 3),
    pre=st.tuples(*[st.floats(0.01, 2.5)] * 3),
    other=st.lists(st.tuples(*[losses] * 3), min_size=2, max_size=2),
)
def test_equal_cells_get_the_same_judgement_in_every_deep_claim(post, pre, other):
    found = set()
    for number, name in enumerate(REMEDIES):
        arm = registry.member(name).arm
        check = verdict_of_post_ln(name, deep_rows(arm, other[number % 2], post=post, pre=pre))
        found.add((check.answer, check.found.mean, check.found.half))
    assert len(found) == 1


@settings(max_examples=50, deadline=None)
@given(
    post=st.tuples(*[losses] * 3),
    pre=st.tuples(*[st.floats(0.01, 2.5)] * 3),
    unit=st.floats(0.1, 10.0),
)
def test_judgement_does_not_depend_on_the_unit_of_stored_rows(post, pre, unit):
    """Rows of older rounds hold progress relative to the best cell of their claim."""
    claim = registry.member("b2t_trains_deep")()
    raw, other = (
        claim.judge(deep_rows("b2t", pre, post=post, pre=pre, unit=each)) for each in (1.0, unit)
    )
    for one, two in zip(raw.checks, other.checks, strict=True):
        if not one.what.startswith("reference"):
            assert one.found.mean == pytest.approx(two.found.mean, abs=1e-9)


@pytest.mark.parametrize("name", TRAINED)
def test_further_arms_change_no_scale(name):
    """The progress of a row depends on itself and on the reference, not on other arms."""
    claim, rows = registry.member(name)(), list(ROWS[name](True, 0.1))
    best = [
        {**row, "arm": "a new arm", "value": 9.0}
        for row in rows
        if row["name"] == "progress" and not claim.is_reference(row)
    ]
    best = [row for row in best if not claim.is_reference(row)]
    assert claim.scale_rows(rows) == claim.scale_rows([*rows, *best])[: len(rows)]


@pytest.mark.parametrize("name", TRAINED)
def test_every_claim_has_a_reference_on_every_scale(name):
    claim, rows = registry.member(name)(), list(ROWS[name](True, 0.0))
    assert claim.judge(rows).answer == "held"
    scales = {claim.scale_of(row["study"]) for row in rows if row["name"] == "progress"}
    for scale in scales:
        own = [row for row in rows if claim.scale_of(row["study"]) == scale]
        assert reference_progress(filter(claim.is_reference, own)) > 0


def test_reference_has_progress_one_at_its_best_setting():
    rows = [*cells({"pre_ln": 0.6, "b2t": 0.3}, noise=0.1)]
    scaled = scale_progress(rows, is_reference=lambda row: row["arm"] == "pre_ln")
    assert reference_progress(row for row in scaled if row["arm"] == "pre_ln") == pytest.approx(1)
    assert reference_progress(row for row in scaled if row["arm"] == "b2t") == pytest.approx(0.5)


def test_rows_without_reference_have_no_progress():
    rows = cells({"b2t": 0.3})
    scaled = scale_progress(rows, is_reference=lambda row: row["arm"] == "pre_ln")
    assert {row["value"] for row in scaled} == {0.0}


def test_studies_with_other_data_have_their_own_scale():
    rows = [*cells({"pre_ln": 0.2}, study="few"), *cells({"pre_ln": 0.8}, study="all")]
    scaled = scale_progress(rows, is_reference=lambda row: True, scale_of=lambda study: study)
    assert {round(row["value"], 9) for row in scaled if row["lr"] == 1e-3} == {1.0}


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize(
    ("post", "answer"), [(0.02, "held"), (0.4, "undecided"), (0.25, "undecided")]
)
def test_premise_about_post_ln_is_the_same_in_all_deep_claims(name, post, answer):
    """Where Post-LN trains, or is at the border, nothing can be said about a remedy."""
    arm = getattr(registry.member(name), "arm", "false_pre_ln")
    fail = 0.02 if arm == "false_pre_ln" else 0.8
    rows = cells({arm: fail, "pre_ln": 0.9, "post_ln": 0.9 * post}, noise=0.02)
    expected = answer if name != "deep_post_ln_fails" or post != 0.4 else "not held"
    assert registry.member(name)().judge(rows).answer == expected
