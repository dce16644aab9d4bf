"""Splitting by sentence hash: reproducibility and sizes of the held-out splits."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data.splitting import HASH_RANGE, HashSet64, HoldoutSize, Splitter, split_key


def edges(keys, valid=None, test=None):
    splitter = Splitter(
        valid=HoldoutSize.parse(valid, "--valid"), test=HoldoutSize.parse(test, "--test")
    )
    for key in keys:
        splitter.observe(key)
    return splitter.edges()


def sizes(keys, edges):
    test = sum(key < edges[0] for key in keys)
    return sum(edges[0] <= key < edges[1] for key in keys), test


KEYS = [split_key(f"sentence {number}") for number in range(10_000)]


def test_split_key_depends_on_normalized_text_and_seed():
    assert split_key("The Cat") == split_key(" the  cat\u00a0") == split_key("the cat")
    assert split_key("Straße") == split_key("STRASSE") and split_key("ﬁsh") == split_key("fish")
    assert split_key("the cat", 1) != split_key("the cat") != split_key("the cats")
    assert split_key("\ud800") != split_key("\ud801")  # lone surrogates are accepted


def test_counts_are_exact_for_distinct_sentences():
    assert sizes(KEYS, edges(KEYS, "300", "77")) == (300, 77)
    assert sizes(KEYS, edges(KEYS, "0", "77")) == (0, 77)
    assert sizes(KEYS, edges(KEYS, "300", "0")) == (300, 0)


def test_fractions_are_met_approximately():
    valid, test = sizes(KEYS, edges(KEYS, "0.1", "0.3"))
    assert abs(valid - 1000) < 120 and abs(test - 3000) < 180  # four standard deviations
    valid, test = sizes(KEYS, edges(KEYS, "0.1", "55"))
    assert abs(valid - 1000) < 120 and test == 55
    valid, test = sizes(KEYS, edges(KEYS, "55", "0.1"))
    assert valid == 55 and abs(test - 1000) < 120


@pytest.mark.parametrize(
    ("total", "expected"), [(0, 0), (1, 0), (2, 0), (3, 1), (40, 2), (200, 10), (60_000, 2000)]
)
def test_default_holdout_size(total, expected):
    keys = [split_key(str(number)) for number in range(total)]
    assert sizes(keys, edges(keys)) == (expected, expected)


def test_fraction_does_not_depend_on_other_sentences():
    assert edges(KEYS[:100], "0.1", "0.1") == edges(KEYS, "0.1", "0.1")


@given(st.lists(st.integers(0, 30), min_size=11, max_size=60), st.integers(1, 5))
def test_equal_sentences_share_a_split_and_count_is_a_minimum(words, number):
    keys = [split_key(str(word)) for word in words]
    random.Random(0).shuffle(keys)
    first, second = edges(keys, str(number), str(number))
    assert edges(sorted(keys), str(number), str(number)) == (first, second)
    valid, test = sizes(keys, (first, second))
    most = max(map(keys.count, keys))
    assert number <= test < number + most
    assert number <= valid < number + most or test + valid == len(keys)


@pytest.mark.parametrize("text", ["-1", "1.5", "many", "nan", "inf", ""])
def test_invalid_sizes_are_rejected(text):
    with pytest.raises(UserError, match="--valid: expected a number of records such as 500"):
        HoldoutSize.parse(text, "--valid")


def test_holding_out_all_records_is_rejected():
    with pytest.raises(UserError, match="expected fewer than 100 records, got 200; none is left"):
        edges(KEYS[:100], "100", "100")
    with pytest.raises(UserError, match=r"a sum below 1, got .*; try 0\.05 each"):
        edges(KEYS[:100], "0.5", "0.5")


def test_heap_size_is_bounded_by_holdout_size():
    splitter = Splitter(valid=HoldoutSize(count=5), test=HoldoutSize(count=7))
    for key in KEYS:
        splitter.observe(key)
    assert len(splitter.heap) == len(splitter.hash_counts) == 12


@given(st.lists(st.integers(0, 40) | st.integers(0, HASH_RANGE - 1), max_size=200))
def test_hash_set_matches_python_set(keys):
    hash_set, reference = HashSet64(), set()
    for key in keys:
        key = key or 1
        assert (key in hash_set) == (key in reference)
        assert hash_set.add(key) == (key not in reference)
        reference.add(key)
    assert len(hash_set) == len(reference)


def test_hash_set_grows_with_bounded_memory():
    hash_set = HashSet64()
    assert all(hash_set.add(key) for key in KEYS) and not any(hash_set.add(key) for key in KEYS)
    assert hash_set.table.itemsize * len(hash_set.table) <= 32 * len(KEYS)
