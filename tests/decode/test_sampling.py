"""Choosing a token: the largest in order, filters as the textbook has them, draws that are fair."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.decode import DecodingOptions
from addnorm.decode.sampling import (
    filter_tokens,
    log_normalizer,
    sample_tokens,
    stable_topk,
    uniform_draws,
)

ROWS = st.lists(
    st.lists(st.sampled_from([-math.inf, -2.0, 0.0, 0.5, 3.0]), min_size=6, max_size=6),
    min_size=1,
    max_size=4,
)


@given(ROWS, st.integers(1, 8))
def test_top_is_a_stable_sort(rows, k):
    """Many equal values: of those the first ones."""
    values, index = stable_topk(torch.tensor(rows), k)
    for row, some, places in zip(rows, values.tolist(), index.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda place: -row[place])[:k]
        real = [place for place in order if row[place] > -math.inf]
        assert places[: len(real)] == real
        assert some == [row[place] for place in order] + [-math.inf] * (k - len(order))


def textbook(p, options):
    """Filters one after the other, on a list of probabilities."""
    p = [value ** (1 / (options.temperature or 1)) for value in p]
    order = sorted(range(len(p)), key=lambda token: -p[token])
    order = order[: options.top_k or len(p)]
    total, seen, chosen = sum(p[token] for token in order), 0.0, []
    for token in order:
        if seen / total < (options.top_p or 2):
            chosen.append(token)
        seen += p[token]
    chosen = [token for token in chosen if p[token] >= (options.min_p or 0) * p[order[0]]]
    total = sum(p[token] for token in chosen)
    return [p[token] / total if token in chosen else 0.0 for token in range(len(p))]


@settings(deadline=None)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9),
    st.none() | st.floats(0.3, 3.0),
    st.none() | st.integers(1, 12),
    st.none() | st.floats(0.05, 1.0),
    st.none() | st.floats(0.05, 1.0),
)
def test_what_is_kept_is_what_the_textbook_keeps(p, temperature, top_k, top_p, min_p):
    options = DecodingOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    p = [value / sum(p) for value in p]
    found, index = filter_tokens(torch.tensor([p], dtype=torch.float64).log(), options)
    spread = torch.zeros(len(p), dtype=torch.float64).scatter(0, index[0], found[0])
    wanted = textbook(p, options)
    if abs(min(wanted) - spread.min()) < 1e-9:  # else rounding decided on a border
        assert spread.tolist() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        DecodingOptions(temperature=1.0),
        DecodingOptions(temperature=1.7),
        DecodingOptions(top_k=4),
        DecodingOptions(top_p=0.8),
        DecodingOptions(min_p=0.2, temperature=1.3),
        DecodingOptions(temperature=0.8, top_k=5, top_p=0.9, min_p=0.05),
    ],
    ids=str,
)
def test_draws_have_the_distribution_they_should(options):
    """Chi-square against the exact probabilities, with a fixed seed."""
    p = torch.tensor([0.3, 0.02, 0.2, 0.14, 0.1, 0.1, 0.08, 0.06], dtype=torch.float64)
    count = 20_000
    chance = uniform_draws(3, [(0, 0)], count)[0]
    found = sample_tokens(p.log().expand(count, -1), chance, options)
    counts = np.bincount(found.numpy(), minlength=len(p))
    wanted = np.array(textbook(p.tolist(), options)) * count
    assert not counts[wanted == 0].any()
    some = wanted > 0
    assert scipy.stats.chisquare(counts[some], wanted[some]).pvalue > 0.01


def test_no_chance_points_at_what_cannot_be_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]])
    for chance in (0.0, 0.5, 1.0 - 2**-53, 1.0):
        for options in (
            DecodingOptions(temperature=1.0),
            DecodingOptions(top_p=1.0),
            DecodingOptions(min_p=0.01),
        ):
            assert sample_tokens(logits, torch.tensor([chance]), options).item() in (1, 3)


def test_chances_follow_from_seed_and_number_alone():
    both = uniform_draws(5, [(3, 0), (4, 0)], 9)
    assert torch.equal(both[1:], uniform_draws(5, [(4, 0)], 9))
    assert torch.equal(both[:, :4], uniform_draws(5, [(3, 0), (4, 0)], 4))
    assert len({float(row[0]) for row in uniform_draws(5, [(3, 0), (3, 1), (4, 0)], 1)}) == 3
    assert not torch.equal(both, uniform_draws(6, [(3, 0), (4, 0)], 9))


def test_a_model_that_diverged_is_told_so():
    for bad in (math.nan, math.inf):
        with pytest.raises(UserError, match="not finite, its training diverged"):
            log_normalizer(torch.tensor([[0.0, bad]]), [0])
