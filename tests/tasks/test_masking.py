"""Masking: selected positions and their replacements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.kernels.cross_entropy import IGNORE_INDEX
from addnorm.tasks.masking import mask_tokens

SPECIALS, VOCAB, MASK_ID = 5, 50, 4


def mask(ids, seed=0, rate=0.15, mask_replace_rate=0.8, random_replace_rate=0.1):
    return mask_tokens(
        np.array(ids, np.int32),
        np.random.default_rng(seed),
        rate=rate,
        mask_replace_rate=mask_replace_rate,
        random_replace_rate=random_replace_rate,
        mask_id=MASK_ID,
        num_specials=SPECIALS,
        vocab=VOCAB,
    )


@given(
    ids=st.lists(st.integers(0, VOCAB - 1), max_size=60),
    seed=st.integers(0, 2**32),
    rate=st.floats(0.01, 0.99),
    split=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)),
)
def test_masking_follows_its_definition(ids, seed, rate, split):
    inputs, targets = mask(ids, seed, rate, *split)
    ordinary = [index for index, token in enumerate(ids) if token >= SPECIALS]
    selected = [index for index in range(len(ids)) if targets[index] != IGNORE_INDEX]
    assert set(selected) <= set(ordinary)
    assert len(selected) == (max(1, round(rate * len(ordinary))) if ordinary else 0)
    for index, token in enumerate(ids):
        if index in selected:
            assert targets[index] == token
            assert inputs[index] == MASK_ID or inputs[index] >= SPECIALS
        else:
            assert inputs[index] == token


def test_fractions_of_replacements():
    """Of 15,000 selected tokens, 80 % are masked, 10 % random and 10 % kept, within 5 sigma."""
    ids = np.random.default_rng(1).integers(SPECIALS, VOCAB, 100_000)
    inputs, targets = mask(ids)
    selected = targets != IGNORE_INDEX
    assert selected.sum() == 15_000
    masked = (inputs[selected] == MASK_ID).mean()
    kept = (inputs[selected] == ids[selected]).mean()
    assert masked == pytest.approx(0.8, abs=5 * (0.8 * 0.2 / 15_000) ** 0.5)
    # A random token equals the original one with probability 1 / 45.
    assert kept == pytest.approx(
        0.1 + 0.1 / (VOCAB - SPECIALS), abs=5 * (0.1 * 0.9 / 15_000) ** 0.5
    )
    random = inputs[selected & (inputs != MASK_ID) & (inputs != ids)]
    counts = np.bincount(random, minlength=VOCAB)
    assert (counts[:SPECIALS] == 0).all() and (counts[SPECIALS:] > 0).all()


def test_positions_are_selected_uniformly():
    ids = np.arange(SPECIALS, SPECIALS + 20)
    counts = np.zeros(20)
    for seed in range(2000):
        counts += mask(ids, seed)[1] != IGNORE_INDEX
    expected = 2000 * 3 / 20
    assert counts.sum() == 2000 * 3
    assert (abs(counts - expected) < 5 * expected**0.5).all()


def test_input_array_is_not_changed():
    ids = np.arange(SPECIALS, SPECIALS + 20)
    mask(ids)
    assert ids.tolist() == list(range(SPECIALS, SPECIALS + 20))
