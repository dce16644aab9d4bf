"""Merged rows, repetitions per epoch, and the validation split."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.tabular.training.row_groups import (
    repeats_per_epoch,
    row_multiplicity,
    split_holdout,
    unique_rows,
)


def merge_rows(cells, y=None, weights=None, seed=3):
    weights = np.ones(len(cells[0])) if weights is None else np.asarray(weights, float)
    return unique_rows(cells, y, weights=weights, multiplicity=row_multiplicity(weights), seed=seed)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["a", "", None])), min_size=1, max_size=25
    ),
    st.data(),
)
def test_order_and_repetition_do_not_matter(rows, data):
    number = np.array([row[0] for row in rows], dtype=float)
    number[number == 2] = np.nan
    text = np.array([row[1] for row in rows], dtype=object)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    one, two = merge_rows([number, text]), merge_rows([number[order], text[order]])
    np.testing.assert_array_equal(number[one.indices], number[order][two.indices])
    np.testing.assert_array_equal(text[one.indices], text[order][two.indices])
    np.testing.assert_array_equal(one.weights, two.weights)
    assert len(one.indices) == len(set(rows)) == one.num_groups
    assert one.weights.sum() == one.multiplicity.sum() == len(rows)


def test_rows_with_equal_features_form_one_group():
    x, y = np.array([1.0, 2.0, 1.0, 1.0]), np.array([0, 0, 1, 0])
    rows = merge_rows([x], y)
    assert len(rows.indices) == 3 and rows.num_groups == 2
    for group in range(2):
        assert len(set(x[rows.indices[rows.groups == group]])) == 1
    assert rows.weights[(x[rows.indices] == 1) & (y[rows.indices] == 0)] == 2
    assert sorted(x[rows.indices[rows.group_starts]]) == [1, 2]


def test_order_depends_on_the_seed():
    orders = [merge_rows([np.arange(50.0)], seed=seed).indices.tolist() for seed in (0, 1)]
    assert orders[0] != orders[1] and orders[0] != sorted(orders[0])


def test_repetitions_follow_weights_and_are_bounded():
    counts = np.array([1.0] * 9 + [40.0])
    np.testing.assert_array_equal(repeats_per_epoch(counts, row_multiplicity(counts)), counts)
    fractions = counts / counts.sum()
    repeats = repeats_per_epoch(fractions, row_multiplicity(fractions))
    assert repeats.tolist() == [1] * 9 + [8]  # fractions are not counts: 10 rows per epoch
    extreme = np.array([1e-4] * 25 + [1e3] * 25)
    assert repeats_per_epoch(extreme, row_multiplicity(extreme)).sum() == 75  # weights, not counts
    many = np.array([1.0] * 25 + [1e3] * 25)
    assert repeats_per_epoch(many, many).sum() < 4200
    assert repeats_per_epoch(np.full(5000, 1e5), np.full(5000, 1e5)).sum() == 5000


def test_holdout_is_stratified_and_never_takes_a_whole_class():
    classes = np.array([0] * 80 + [1] * 20 + [2])
    rows = merge_rows([np.arange(101.0)], classes)
    held, classes = split_holdout(rows, classes[rows.indices], 0.1), classes[rows.indices]
    assert [held[classes == each].sum() for each in range(3)] == [8, 2, 0]
    assert set(held) == {0, 1}
    few = merge_rows([np.arange(3.0)])
    assert not split_holdout(few, np.zeros(3), 0.1).any()


def test_holdout_of_many_small_classes():
    classes = np.repeat(np.arange(20), 8)
    rows = merge_rows([np.arange(160.0)], classes)
    held = split_holdout(rows, classes[rows.indices], 0.1)
    assert held.sum() == 16
    assert np.bincount(classes[rows.indices], held).max() == 1


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_holdout_with_one_heavy_row(scale):
    weights = np.array([10_000.0] + [1.0] * 399) * scale
    for seed in range(9):
        rows = merge_rows([np.arange(400.0)], np.zeros(400), weights, seed=seed)
        held = split_holdout(rows, np.zeros(400), 0.1)
        assert 0 < (rows.weights * held).sum() <= 0.1 * weights.sum()


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(1, 30)), min_size=2),
    st.sampled_from([0.05, 0.1, 0.25, 0.5]),
)
def test_holdout_never_exceeds_its_fraction_or_takes_a_whole_class(table, fraction):
    x, y, weights = (np.array(column) for column in zip(*table, strict=True))
    rows = merge_rows([x.astype(float)], y, weights)
    y = y[rows.indices]
    held = split_holdout(rows, y, fraction)
    assert (held >= 0).all() and (held <= 1).all()
    assert (rows.weights * held).sum() <= fraction * weights.sum() + 1e-9
    for each in np.unique(y):
        assert ((1 - held) * rows.weights)[y == each].sum() > 0


def test_rows_with_equal_features_are_held_out_together():
    x, y = np.repeat(np.arange(500.0), 3), np.arange(1500) % 2
    rows = merge_rows([x], y)
    held = split_holdout(rows, y[rows.indices], 0.1)
    assert 100 <= (rows.multiplicity * held).sum() <= 150
    for group in range(rows.num_groups):
        assert len(set(held[rows.groups == group])) == 1


def test_frequent_groups_with_several_targets_are_split():
    """Otherwise training and validation would see different targets for the same features."""
    rng = np.random.default_rng(0)
    x = np.repeat(np.arange(50.0), 40)
    y = (rng.random(2000) < 0.3).astype(int)
    rows = merge_rows([x], y)
    y = y[rows.indices]
    held = rows.multiplicity * split_holdout(rows, y, 0.1)
    assert held.sum() == 200
    assert np.bincount(rows.groups, held).tolist() == [4] * 50
    assert 0.2 < held[y == 1].sum() / 200 < 0.4
