"""Token choice: stable top-k, filters against a reference, and sampling distributions."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
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
def test_topk_is_stable(rows, k):
    """Among equal values, the first ones are chosen."""
    values, index = stable_topk(torch.tensor(rows), k)
    for row, row_values, positions in zip(rows, values.tolist(), index.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda position: -row[position])[:k]
        finite = [position for position in order if row[position] > -math.inf]
        assert positions[: len(finite)] == finite
        assert row_values == [row[position] for position in order] + [-math.inf] * (k - len(order))


def reference_filter(p, options):
    """Apply the filters one after the other to a list of probabilities."""
    p = [value ** (1 / (options.temperature or 1)) for value in p]
    order = sorted(range(len(p)), key=lambda token: -p[token])
    order = order[: options.top_k or len(p)]
    total, seen, kept = sum(p[token] for token in order), 0.0, []
    for token in order:
        if seen / total < (options.top_p or 2):
            kept.append(token)
        seen += p[token]
    kept = [token for token in kept if p[token] >= (options.min_p or 0) * p[order[0]]]
    total = sum(p[token] for token in kept)
    return [p[token] / total if token in kept else 0.0 for token in range(len(p))]


@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9),
    st.none() | st.floats(0.3, 3.0),
    st.none() | st.integers(1, 12),
    st.none() | st.floats(0.05, 1.0),
    st.none() | st.floats(0.05, 1.0),
)
def test_filters_match_reference(p, temperature, top_k, top_p, min_p):
    options = DecodingOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    p = [value / sum(p) for value in p]
    kept, index = filter_tokens(torch.tensor([p], dtype=torch.float64).log(), options)
    actual = torch.zeros(len(p), dtype=torch.float64).scatter(0, index[0], kept[0])
    expected = reference_filter(p, options)
    if abs(min(expected) - actual.min()) < 1e-9:  # else rounding decided a tie
        assert actual.tolist() == pytest.approx(expected, abs=1e-9)


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
def test_samples_follow_the_filtered_distribution(options):
    """Chi-square against the exact probabilities, with a fixed seed."""
    p = torch.tensor([0.3, 0.02, 0.2, 0.14, 0.1, 0.1, 0.08, 0.06], dtype=torch.float64)
    count = 20_000
    uniform = uniform_draws(3, [(0, 0)], count)[0]
    tokens = sample_tokens(p.log().expand(count, -1), uniform, options)
    counts = np.bincount(tokens.numpy(), minlength=len(p))
    expected = np.array(reference_filter(p.tolist(), options)) * count
    assert not counts[expected == 0].any()
    possible = expected > 0
    assert scipy.stats.chisquare(counts[possible], expected[possible]).pvalue > 0.01


def test_impossible_tokens_are_never_sampled():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]])
    for uniform in (0.0, 0.5, 1.0 - 2**-53, 1.0):
        for options in (
            DecodingOptions(temperature=1.0),
            DecodingOptions(top_p=1.0),
            DecodingOptions(min_p=0.01),
        ):
            assert sample_tokens(logits, torch.tensor([uniform]), options).item() in (1, 3)


def test_uniform_draws_depend_on_seed_and_key_only():
    both = uniform_draws(5, [(3, 0), (4, 0)], 9)
    assert torch.equal(both[1:], uniform_draws(5, [(4, 0)], 9))
    assert torch.equal(both[:, :4], uniform_draws(5, [(3, 0), (4, 0)], 4))
    assert len({float(row[0]) for row in uniform_draws(5, [(3, 0), (3, 1), (4, 0)], 1)}) == 3
    assert not torch.equal(both, uniform_draws(6, [(3, 0), (4, 0)], 9))


def test_nonfinite_logits_are_rejected():
    for bad in (math.nan, math.inf):
        with pytest.raises(UserError, match="not finite, its training diverged"):
            log_normalizer(torch.tensor([[0.0, bad]]), [0])
