"""What is learned of columns, and rows as a weighted set."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from addnorm.core.errors import UserError
from addnorm.models.tabular.cells import ABSENT, KNOWN, NO_TEXT, RARE
from addnorm.tabular.columns import read_columns
from addnorm.tabular.encoder import TableEncoder
from addnorm.tabular.features import CATEGORIES, Category, Text, part_of
from addnorm.tabular.rows import copies, row_set, split
from addnorm.tabular.scaling import KNOTS, Quantiles
from tests.tabular.tables import mixed


def encoder_of(frame, weights=None):
    ones = np.ones(len(frame)) if weights is None else weights
    return TableEncoder.of(read_columns(frame), ones)


def test_a_frame_becomes_cells():
    frame, _ = mixed(200)
    encoder = encoder_of(frame)
    cells = encoder.encode(frame)
    parts = [each.part for each in encoder.numbers]
    assert parts == ["", "", "elapsed", "month", "weekday"]  # the hour does not vary
    assert cells.absent[0, 0] and cells.absent[1, 0] and cells.numbers[0, 0] == 0
    assert cells.numbers.isfinite().all()
    assert encoder.sources == [0, 1, 5, 5, 5, 2, 3, 4]
    assert encoder.layout["categories"] == (4, 5)
    assert abs(float(cells.numbers[~cells.absent[:, 0], 0].std()) - 1) < 0.05


def test_categories_that_were_never_met_are_rare_and_absent_is_absent():
    encoder = encoder_of(pd.DataFrame({"c": ["a", "b", "b", None]}))
    codes = encoder.encode(pd.DataFrame({"c": ["b", "a", "z", None]})).codes[:, 0]
    assert codes.tolist() == [KNOWN, KNOWN + 1, RARE, ABSENT]


def test_only_so_many_categories_are_told_apart():
    texts = np.array([f"v{index % (CATEGORIES + 50)}" for index in range(9000)], dtype=object)
    made = Category.of(0, texts, np.ones(len(texts)))
    assert len(made.values) == CATEGORIES
    assert (made.codes(texts) == RARE).any()


def test_texts_are_bags_of_words_that_come_back():
    texts = np.array(["Mr. Smith", "Mr. Jones", "Mr. Hill", "Mrs. Hall", None], dtype=object)
    made = Text.of(0, texts, np.ones(5))
    assert made.words == ("mr",)
    assert made.codes(texts)[:, 0].tolist() == [2, 2, 2, 0, NO_TEXT]


@pytest.mark.parametrize(
    ("part", "wanted"), [("month", 11), ("weekday", 0), ("hour", 7.5), ("elapsed", 1794814200)]
)
def test_parts_of_a_moment(part, wanted):
    moment = np.array([1794814200.0, np.nan])  # Monday, 2026-11-16 07:30
    assert part_of(moment, part)[0] == wanted and np.isnan(part_of(moment, part)[1])


def test_an_encoder_survives_json():
    frame, _ = mixed(200)
    encoder = encoder_of(frame)
    again = TableEncoder.from_plain(json.loads(json.dumps(encoder.to_plain())))
    for one, two in zip(encoder.encode(frame), again.encode(frame), strict=True):
        assert torch.equal(one, two)


def test_columns_without_a_value_are_refused_by_name():
    with pytest.raises(UserError, match="columns without any value: 'b'; leave them out"):
        encoder_of(pd.DataFrame({"a": [1, 2], "b": [np.nan, None]}))


# Scaling


def test_quantiles_make_normal_scores_and_come_back():
    x = np.exp(np.random.default_rng(0).normal(size=5000))
    curve = Quantiles.of(x, np.ones(len(x)))
    z = curve.scaled(x)
    assert len(curve.values) <= KNOTS + 2
    assert abs(z.mean()) < 0.01 and abs(z.std() - 1) < 0.01
    np.testing.assert_allclose(
        np.quantile(z, [0.1, 0.5, 0.9]), norm.ppf([0.1, 0.5, 0.9]), atol=0.05
    )
    np.testing.assert_allclose(np.median(np.abs(curve.back(z) / x - 1)), 0, atol=0.01)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=20),
)
def test_a_weight_is_a_repetition_for_quantiles(rows):
    x, weights = np.array(rows, dtype=float).T
    one = Quantiles.of(x, weights)
    many = Quantiles.of(np.repeat(x, weights.astype(int)), np.ones(int(weights.sum())))
    np.testing.assert_array_equal(one.values, many.values)
    np.testing.assert_allclose(one.scores, many.scores, atol=1e-12)


def test_a_constant_column_is_zero():
    curve = Quantiles.of(np.full(9, 3.0), np.ones(9))
    assert curve.scaled(np.array([3.0, 4.0])).tolist() == [0, 0]


# Rows


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=25), st.data()
)
def test_order_and_repetition_change_nothing(rows, data):
    X = np.array(rows, dtype=float)
    X[X == 2] = np.nan
    order = np.array(data.draw(st.permutations(range(len(X)))))
    one = row_set([X], np.ones(len(X)), seed=3)
    two = row_set([X[order]], np.ones(len(X)), seed=3)
    np.testing.assert_array_equal(X[one.chosen], X[order][two.chosen])
    np.testing.assert_array_equal(one.weights, two.weights)
    different = {tuple(np.nan_to_num(row, nan=9)) for row in X}
    assert len(one.chosen) == len(different)
    assert one.weights.sum() == len(X)


def test_another_seed_gives_another_order():
    X = np.arange(50.0)[:, None]
    orders = [row_set([X], np.ones(50), seed=seed).chosen.tolist() for seed in (0, 1)]
    assert orders[0] != orders[1] and orders[0] != sorted(orders[0])


def test_a_pass_shows_heavy_rows_often_but_is_bounded():
    counts = np.array([1.0] * 9 + [40.0])
    np.testing.assert_array_equal(copies(counts), counts)
    assert copies(counts / counts.sum()).tolist() == [1] * 9 + [8]  # no counts: ten rows' worth
    assert copies(np.array([1e-4] * 25 + [1e3] * 25)).sum() == 75  # weights, but no counts
    assert copies(np.array([1.0] * 25 + [1e3] * 25)).sum() < 4200
    assert copies(np.full(5000, 1e5)).sum() == 5000


def test_a_part_of_every_class_is_held_out_and_never_all_of_it():
    groups = np.array([0] * 80 + [1] * 19 + [2])
    held = split(groups, np.ones(100), 0.1)
    assert [int(held[groups == each].sum()) for each in range(3)] == [8, 2, 0]
    assert not split(np.zeros(3, int), np.ones(3), 0.1).any()
