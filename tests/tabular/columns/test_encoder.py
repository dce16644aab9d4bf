"""Fitted encodings of columns."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from addnorm.models.tabular.table_batch import ABSENT, FIRST_KNOWN, NO_TEXT, RARE
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.features import MAX_CATEGORIES, Category, Text, datetime_part
from addnorm.tabular.columns.quantiles import MAX_KNOTS, Quantiles
from addnorm.tabular.columns.reader import read_columns
from tests.tabular.sample_tables import mixed


def fit_encoder(frame, weights=None):
    ones = np.ones(len(frame)) if weights is None else weights
    return TableEncoder.from_columns(read_columns(frame), ones)


def test_encode_mixed_frame():
    frame, _ = mixed(200)
    encoder = fit_encoder(frame)
    cells = encoder.encode(frame)
    parts = [each.part for each in encoder.numbers]
    assert parts == ["", "", "elapsed", "month", "weekday"]  # the hour does not vary
    assert cells.absent[0, 0] and cells.absent[1, 0] and cells.numbers[0, 0] == 0
    assert cells.numbers.isfinite().all()
    assert encoder.sources == [0, 1, 5, 5, 5, 2, 3, 4]
    assert encoder.layout["categories"] == (4, 5)
    assert abs(float(cells.numbers[~cells.absent[:, 0], 0].std()) - 1) < 0.05


def test_codes_of_unseen_and_missing_categories():
    encoder = fit_encoder(pd.DataFrame({"c": ["a", "b", "b", None]}))
    codes = encoder.encode(pd.DataFrame({"c": ["b", "a", "z", None]})).codes[:, 0]
    assert codes.tolist() == [FIRST_KNOWN, FIRST_KNOWN + 1, RARE, ABSENT]


def test_number_of_categories_is_bounded():
    texts = np.array([f"v{index % (MAX_CATEGORIES + 50)}" for index in range(9000)], dtype=object)
    feature = Category.from_texts(0, texts, np.ones(len(texts)))
    assert len(feature.values) == MAX_CATEGORIES
    assert (feature.codes(texts) == RARE).any()


def test_vocabulary_has_repeated_words_only():
    texts = np.array(["Mr. Smith", "Mr. Jones", "Mr. Hill", "Mrs. Hall", None], dtype=object)
    feature = Text.from_texts(0, texts, np.ones(5))
    assert feature.words == ("mr",)
    assert feature.codes(texts)[:, 0].tolist() == [2, 2, 2, 0, NO_TEXT]


@pytest.mark.parametrize(
    ("part", "expected"), [("month", 11), ("weekday", 0), ("hour", 7.5), ("elapsed", 1794814200)]
)
def test_datetime_parts(part, expected):
    seconds = np.array([1794814200.0, np.nan])  # Monday, 2026-11-16 07:30
    assert datetime_part(seconds, part)[0] == expected and np.isnan(datetime_part(seconds, part)[1])


def test_encoder_json_round_trip():
    frame, _ = mixed(200)
    encoder = fit_encoder(frame)
    again = TableEncoder.from_json(json.loads(json.dumps(encoder.to_json())))
    for one, two in zip(encoder.encode(frame), again.encode(frame), strict=True):
        assert torch.equal(one, two)


def test_column_without_training_values_is_constant():
    encoder = fit_encoder(
        pd.DataFrame({"a": [1.0], "b": [None], "c": [float("nan")]}).astype({"b": "category"})
    )
    cells = encoder.encode(pd.DataFrame({"a": [1.0], "b": ["new"], "c": [3.0]}))
    assert cells.numbers.tolist() == [[0, 0]] and cells.codes.tolist() == [[RARE]]


# Scaling


def test_quantile_scores_are_normal_and_invertible():
    x = np.exp(np.random.default_rng(0).normal(size=5000))
    curve = Quantiles.from_samples(x, np.ones(len(x)))
    z = curve.transform(x)
    assert len(curve.values) <= MAX_KNOTS + 2
    assert abs(z.mean()) < 0.01 and abs(z.std() - 1) < 0.01
    np.testing.assert_allclose(
        np.quantile(z, [0.1, 0.5, 0.9]), norm.ppf([0.1, 0.5, 0.9]), atol=0.05
    )
    np.testing.assert_allclose(np.median(np.abs(curve.inverse_transform(z) / x - 1)), 0, atol=0.01)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=20),
)
def test_quantiles_treat_weights_as_repetitions(rows):
    x, weights = np.array(rows, dtype=float).T
    one = Quantiles.from_samples(x, weights)
    many = Quantiles.from_samples(np.repeat(x, weights.astype(int)), np.ones(int(weights.sum())))
    np.testing.assert_array_equal(one.values, many.values)
    np.testing.assert_allclose(one.scores, many.scores, atol=1e-12)


def test_constant_column_has_score_zero():
    curve = Quantiles.from_samples(np.full(9, 3.0), np.ones(9))
    assert curve.transform(np.array([3.0, 4.0])).tolist() == [0, 0]
