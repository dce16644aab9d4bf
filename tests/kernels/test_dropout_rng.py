"""Random numbers of dropout: published values, rate, independence and reproducibility."""

import math

import pytest
import torch

from addnorm.kernels import library
from addnorm.kernels.add_norm import native
from addnorm.kernels.dropout_rng import drop_threshold, dropout_factors, sample_seed

WORD = 2**64


def splitmix64(seed, count):
    """Return the first `count` outputs of SplitMix64, in Python integers."""
    outputs = []
    for n in range(1, count + 1):
        z = (seed + n * 0x9E3779B97F4A7C15) % WORD
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
        outputs.append(z ^ (z >> 31))
    return outputs


def reference_factors(seed, rows, dim, rate):
    """Compute the factors one feature at a time."""
    words_per_row = math.ceil(dim / 4)
    stream = iter(splitmix64(seed % WORD, rows * words_per_row))
    dropped, kept = drop_threshold(rate)
    rows_of_factors = []
    for _ in range(rows):
        row = []
        for word in [next(stream) for _ in range(words_per_row)]:
            row += [word >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
        # The kernel compares signed numbers: draws of the upper half are negative.
        signed = [each - 0x10000 if each >= 0x8000 else each for each in row[:dim]]
        rows_of_factors.append([kept if each >= dropped - 0x8000 else 0.0 for each in signed])
    return torch.tensor(rows_of_factors)


def test_splitmix64_gives_published_numbers():
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [0, 1234567, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (3, 4), (5, 7), (2, 33)])
def test_factors_match_reference(seed, rows, dim):
    x = torch.empty(rows, dim)
    assert dropout_factors(x, torch.tensor(seed), 0.3).equal(
        reference_factors(seed, rows, dim, 0.3)
    )


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_rate_holds_in_every_column_and_row(rate):
    kept = dropout_factors(torch.empty(1000, 600), torch.tensor(7), rate) != 0
    for count, means in ((1000, kept.double().mean(0)), (600, kept.double().mean(1))):
        worst = (means - (1 - rate)).abs().max()
        assert worst < 6 * math.sqrt(rate * (1 - rate) / count) + 1 / count


@pytest.mark.parametrize("shift", [(0, 1), (0, 4), (1, 0), (1, 1)])
def test_neighbouring_features_are_uncorrelated(shift):
    kept = (dropout_factors(torch.empty(500, 400), torch.tensor(3), 0.5) != 0).double() - 0.5
    down, right = shift
    features, neighbours = kept[: 500 - down, : 400 - right], kept[down:, right:]
    correlation = (features * neighbours).mean() / 0.25
    assert abs(float(correlation)) < 5 / math.sqrt(features.numel())


def test_masks_of_different_seeds_are_independent():
    torch.manual_seed(0)
    one, two = ((dropout_factors(torch.empty(300, 300), sample_seed(), 0.5) != 0) for _ in range(2))
    share = float((one == two).double().mean())
    assert abs(share - 0.5) < 5 * 0.5 / 300


def test_seed_is_drawn_from_torch_generator():
    torch.manual_seed(5)
    one, two = sample_seed(), sample_seed()
    torch.manual_seed(5)
    assert sample_seed() == one != two


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (2, 3, 5)])
def test_factors_have_shape_of_input(shape):
    assert dropout_factors(torch.empty(shape), torch.tensor(1), 0.5).shape == shape


def test_rate_just_below_one_has_finite_scale():
    dropped, kept = drop_threshold(1 - 1e-12)
    assert dropped < 1 << 16 and math.isfinite(kept)
    assert drop_threshold(0.0) == (0, 1.0)


@pytest.mark.parametrize(
    "level", library.list_levels() or [pytest.param("", marks=pytest.mark.skip)]
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (131, 7), (200, 64), (70, 99), (3, 1000)])
def test_levels_and_threads_draw_same_bits(level, threads, rows, dim):
    x, seed = torch.randn(rows, dim, generator=torch.Generator().manual_seed(0)), sample_seed()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with library.use_level(level):
            for each in (x, x.bfloat16()):
                expected = (each * dropout_factors(x, seed, 0.3)).to(each.dtype)
                assert native.dropout_native(each, seed, 0.3).equal(expected)
    finally:
        torch.set_num_threads(before)
