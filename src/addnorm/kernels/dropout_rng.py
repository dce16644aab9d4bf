"""Random draws of dropout: a pure function of a seed and a position.

A mask that can be recomputed need not be saved for the backward. The seed is one 64-bit number of
torch's generator. Word n of its stream is SplitMix64, modulo 2^64:

    z = seed + (n + 1) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    word = z ^ (z >> 31)

Four consecutive features share a word, 16 bits each, and every row of features starts a new word. A
feature is dropped if its 16 bits, as a signed integer, are below `threshold - 32768`.
`native/add_norm/dropout_rng.h` computes the same bits.

>>> x, seed = torch.ones(2, 5), torch.tensor(7)
>>> dropout_factors(x, seed, rate=0.5)
tensor([[2., 2., 0., 2., 2.],
        [2., 0., 2., 0., 2.]])

Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

NUM_DRAW_VALUES = 1 << 16
"""Values of one draw; a rate is rounded to a multiple of 1 / NUM_DRAW_VALUES."""

GAMMA, FIRST_MULTIPLIER, SECOND_MULTIPLIER = (
    0x9E3779B97F4A7C15,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
)


def sample_seed() -> Tensor:
    """Return a 64-bit seed from torch's CPU generator, a scalar."""
    # torch.compile treats randint as random; it would fold other expressions into a constant.
    return torch.randint(-(2**63), 2**63 - 1, (), device="cpu")


def drop_threshold(rate: float) -> tuple[int, float]:
    """Return how many of the NUM_DRAW_VALUES draws drop a feature, and the factor of kept ones."""
    dropped = min(round(rate * NUM_DRAW_VALUES), NUM_DRAW_VALUES - 1)
    return dropped, NUM_DRAW_VALUES / (NUM_DRAW_VALUES - dropped)


def matrix_shape(x: Tensor) -> tuple[int, int]:
    """Return (rows, dim) of a tensor viewed as a matrix of its last axis."""
    dim = x.shape[-1] if x.ndim else 1
    return (x.numel() // dim if dim else 0), dim


def dropout_factors(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    """Return 0 or 1 / (1 - rate) for each feature of x, in float32 at least.

    This is the definition of the draws, in plain torch.
    """
    rows, dim = matrix_shape(x)
    words = torch.arange(1, rows * -(-dim // 4) + 1, device=seed.device)
    words.mul_(_to_int64(GAMMA)).add_(seed)
    for shift, factor in ((30, FIRST_MULTIPLIER), (27, SECOND_MULTIPLIER)):
        words.bitwise_xor_(_logical_right_shift(words, shift)).mul_(_to_int64(factor))
    words.bitwise_xor_(_logical_right_shift(words, 31))
    draws = words.view(torch.int16).view(rows, -(-dim // 4) * 4)[:, :dim]
    dropped, kept_factor = drop_threshold(rate)
    keep = draws >= dropped - NUM_DRAW_VALUES // 2
    return keep.to(torch.promote_types(x.dtype, torch.float32)).mul_(kept_factor).reshape(x.shape)


def sample_dropout_factors(x: Tensor, rate: float) -> Tensor:
    """Return `dropout_factors` with a new seed.

    On other devices, and in a compiled graph, torch's own dropout draws them.
    """
    if x.device.type == "cpu" and not torch.compiler.is_compiling():
        return dropout_factors(x, sample_seed(), rate)
    return F.dropout(torch.ones_like(x, dtype=torch.promote_types(x.dtype, torch.float32)), rate)


def _to_int64(word: int) -> int:
    """Return the int64 with the same bits as an unsigned word."""
    return word - 2**64 if word >= 2**63 else word


def _logical_right_shift(words: Tensor, shift: int) -> Tensor:
    """Shift in zeros from the left; torch's shift copies the sign bit."""
    return (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)
