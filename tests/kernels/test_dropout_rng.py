"""The draws of dropout: published numbers, the rate, independence, and the same bits everywhere."""

import math

import pytest
import torch

from addnorm.kernels import library
from addnorm.kernels.add_norm import native
from addnorm.kernels.dropout_rng import drop_threshold, dropout_factors, sample_seed

WORD = 2**64


def words(seed, count):
    """SplitMix64 in whole numbers of Python."""
    made = []
    for n in range(1, count + 1):
        z = (seed + n * 0x9E3779B97F4A7C15) % WORD
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
        made.append(z ^ (z >> 31))
    return made


def twin(seed, rows, dim, rate):
    """Row by row, feature by feature."""
    per = math.ceil(dim / 4)
    stream = iter(words(seed % WORD, rows * per))
    dropped, kept = drop_threshold(rate)
    made = []
    for _ in range(rows):
        row = []
        for word in [next(stream) for _ in range(per)]:
            row += [word >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
        # As a signed number a draw of the upper half is negative, so that it is below the others.
        signed = [each - 0x10000 if each >= 0x8000 else each for each in row[:dim]]
        made.append([kept if each >= dropped - 0x8000 else 0.0 for each in signed])
    return torch.tensor(made)


def test_the_words_are_the_published_ones():
    assert words(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [0, 1234567, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (3, 4), (5, 7), (2, 33)])
def test_factors_are_those_of_the_words(seed, rows, dim):
    x = torch.empty(rows, dim)
    assert dropout_factors(x, torch.tensor(seed), 0.3).equal(twin(seed, rows, dim, 0.3))


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_the_rate_is_met_in_every_column_and_row(rate):
    kept = dropout_factors(torch.empty(1000, 600), torch.tensor(7), rate) != 0
    for count, means in ((1000, kept.double().mean(0)), (600, kept.double().mean(1))):
        worst = (means - (1 - rate)).abs().max()
        assert worst < 6 * math.sqrt(rate * (1 - rate) / count) + 1 / count


@pytest.mark.parametrize("shift", [(0, 1), (0, 4), (1, 0), (1, 1)])
def test_neighbours_do_not_know_each_other(shift):
    kept = (dropout_factors(torch.empty(500, 400), torch.tensor(3), 0.5) != 0).double() - 0.5
    down, right = shift
    here, there = kept[: 500 - down, : 400 - right], kept[down:, right:]
    correlation = (here * there).mean() / 0.25
    assert abs(float(correlation)) < 5 / math.sqrt(here.numel())


def test_seeds_do_not_know_each_other():
    torch.manual_seed(0)
    one, two = ((dropout_factors(torch.empty(300, 300), sample_seed(), 0.5) != 0) for _ in range(2))
    share = float((one == two).double().mean())
    assert abs(share - 0.5) < 5 * 0.5 / 300


def test_a_seed_is_a_number_of_torchs_generator():
    torch.manual_seed(5)
    one, two = sample_seed(), sample_seed()
    torch.manual_seed(5)
    assert sample_seed() == one != two


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (2, 3, 5)])
def test_any_shape(shape):
    assert dropout_factors(torch.empty(shape), torch.tensor(1), 0.5).shape == shape


def test_a_rate_just_below_one_keeps_something_finite():
    dropped, kept = drop_threshold(1 - 1e-12)
    assert dropped < 1 << 16 and math.isfinite(kept)
    assert drop_threshold(0.0) == (0, 1.0)


@pytest.mark.parametrize("level", library.levels() or [pytest.param("", marks=pytest.mark.skip)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (131, 7), (200, 64), (70, 99), (3, 1000)])
def test_every_level_and_thread_draws_the_same_bits(level, threads, rows, dim):
    x, seed = torch.randn(rows, dim, generator=torch.Generator().manual_seed(0)), sample_seed()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with library.use_level(level):
            for each in (x, x.bfloat16()):
                wanted = (each * dropout_factors(x, seed, 0.3)).to(each.dtype)
                assert native.dropout_native(each, seed, 0.3).equal(wanted)
    finally:
        torch.set_num_threads(before)
