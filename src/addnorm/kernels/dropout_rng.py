"""The draws of dropout: a pure function of a seed and a place, so that nobody has to keep them.

A seed is one number of torch's generator. Word n of its stream is SplitMix64,

z = seed + (n + 1) * 0x9E3779B97F4A7C15
z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
z = (z ^ (z >> 27)) * 0x94D049BB133111EB
word = z ^ (z >> 31)                            modulo 2^64

and four features in a row share a word, 16 bits each; the next row of features begins with the next
word. `native/vectors.h` makes the same bits.

Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014.
"""

import torch
from torch import Tensor

NUM_DRAW_VALUES = 1 << 16
"""Values of one draw: a rate is met to one part in so many."""

GAMMA, FIRST_MULTIPLIER, SECOND_MULTIPLIER = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
)


def sample_seed() -> Tensor:
    """A seed of 64 bits from torch's generator of the CPU; a scalar."""
    # An operator that torch.compile knows to be random: others of one spelling it would make once.
    return torch.randint(-(2**63), 2**63 - 1, (), device="cpu")


def drop_threshold(rate: float) -> tuple[int, float]:
    """How many of all draws drop a feature, and what the others are multiplied with."""
    dropped = min(round(rate * NUM_DRAW_VALUES), NUM_DRAW_VALUES - 1)
    return dropped, NUM_DRAW_VALUES / (NUM_DRAW_VALUES - dropped)


def matrix_shape(x: Tensor) -> tuple[int, int]:
    """A tensor as a matrix: rows of its last axis."""
    dim = x.shape[-1] if x.ndim else 1
    return (x.numel() // dim if dim else 0), dim


def dropout_factors(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    """0 or 1 / (1 - rate) for each feature of x; the definition, in plain torch."""
    rows, dim = matrix_shape(x)
    words = torch.arange(1, rows * -(-dim // 4) + 1, device=seed.device)
    words.mul_(_to_int64(GAMMA)).add_(seed)
    for shift, factor in ((30, FIRST_MULTIPLIER), (27, SECOND_MULTIPLIER)):
        words.bitwise_xor_(_logical_right_shift(words, shift)).mul_(_to_int64(factor))
    words.bitwise_xor_(_logical_right_shift(words, 31))
    draws = words.view(torch.int16).view(rows, -(-dim // 4) * 4)[:, :dim]
    dropped, kept = drop_threshold(rate)
    keep = draws >= dropped - NUM_DRAW_VALUES // 2
    return keep.to(torch.promote_types(x.dtype, torch.float32)).mul_(kept).reshape(x.shape)


def _to_int64(word: int) -> int:
    """The int64 of the same bits."""
    return word - 2**64 if word >= 2**63 else word


def _logical_right_shift(words: Tensor, shift: int) -> Tensor:
    """A shift that brings zeros from the left, which torch's does not for negative numbers."""
    return (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)
