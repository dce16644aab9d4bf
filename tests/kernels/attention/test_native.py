"""Attention by the native library where its paths part: blocks, strips, vectors, places."""

import math

import pytest
import torch
from torch import nn

from addnorm.kernels import library
from addnorm.kernels.attention import native
from addnorm.kernels.attention.reference import SequenceOffsets
from addnorm.kernels.attention.varlen import varlen_attention
from tests.kernels.attention.test_varlen import agree, agree_in_bfloat16, drawn, ours

LEVELS = library.levels() or [
    pytest.param("", marks=pytest.mark.skip(library.get_availability().reason))
]


@pytest.fixture(params=LEVELS, autouse=True)
def level(request):
    with library.use_level(request.param):
        yield request.param


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [8, 16, 21, 24, 48])
def test_lengths_around_the_borders_of_blocks(dim, causal):
    """128 queries or keys and 256 keys are taken at once; whole vectors are summed in place."""
    lengths = [127, 128, 129, 255, 256, 257]
    given = drawn(lengths, lengths, heads=2, kv_heads=1, dim=dim)
    agree(given, lengths, lengths, causal=causal)


@pytest.mark.parametrize("dim", [16, 21])
def test_other_numbers_of_keys_than_of_queries_around_the_borders(dim):
    lengths, key_lengths = [1, 128, 129, 13, 0, 2], [257, 256, 1, 129, 300, 0]
    given = drawn(lengths, key_lengths, heads=4, kv_heads=2, dim=dim)
    agree(given, lengths, key_lengths, causal=False)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [1, 3, 8, 16, 24, 32, 40, 64])
def test_every_length_of_a_short_sequence(dim, causal):
    lengths = list(range(27))
    given = drawn(lengths, lengths, heads=2, kv_heads=2, dim=dim)
    agree(given, lengths, lengths, causal=causal)


@pytest.mark.parametrize("dim", [16, 64, 70])
def test_bfloat16_at_the_borders(dim):
    lengths = [1, 64, 129]
    given = drawn(lengths, lengths, heads=2, kv_heads=1, dim=dim, dtype=torch.bfloat16)
    agree_in_bfloat16(given, lengths, causal=True, scale=dim**-0.5)


@pytest.mark.parametrize("offset", [1, 3])
def test_memory_at_any_address(offset):
    """Inputs begin between vectors and have gaps between tokens, as part of a larger product."""
    lengths = [30, 0, 7]

    def moved(x):
        room = torch.zeros(x.shape[1], 3 * x.shape[0] * x.shape[2] + offset)
        part = room[:, offset : offset + x.shape[0] * x.shape[2]]
        part.copy_(x.transpose(0, 1).flatten(1))
        return part.unflatten(1, (x.shape[0], x.shape[2])).transpose(0, 1)

    plain = drawn(lengths, lengths, dim=16)
    odd = [moved(each) for each in plain]
    assert all(each.data_ptr() % 16 for each in odd)
    agree(odd, lengths, lengths, causal=True)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 256, 257, 1000])
def test_probabilities_of_the_backward_sum_to_one(count):
    """They are made from the saved logarithm, so that is what is looked at."""
    q, k = torch.zeros(1, 8, 16), torch.zeros(1, count, 16)
    v = torch.zeros(1, count, 16, requires_grad=True)
    y = ours(q, k, v, [8], [count], scale=1.0)
    (dv,) = torch.autograd.grad(y, v, torch.ones_like(y))
    torch.testing.assert_close(dv * count / 8, torch.ones_like(dv), rtol=1e-6, atol=0)


@pytest.mark.parametrize("length", [40, 300])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_what_is_not_finite_goes_as_in_torch_with_few_keys_and_many(where, value, length):
    given = dict(zip("qkv", drawn([length], [length], heads=2, dim=16), strict=False))
    given[where] = given[where].clone()
    given[where][:, length // 2, 3] = value
    mine, theirs = ([each.detach().requires_grad_() for each in given.values()] for _ in range(2))
    y = ours(*mine, [length], [length], scale=1.0)
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        wanted = nn.functional.scaled_dot_product_attention(*theirs, scale=1.0, enable_gqa=True)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    grads = torch.autograd.grad(y.sum(), mine)
    for one, other in zip(grads, torch.autograd.grad(wanted.sum(), theirs), strict=True):
        assert not (one.isfinite() & ~other.isfinite()).any()


def test_all_hidden_but_oneself_and_all_equal():
    """The first query of a causal sequence has one key, whatever the others are."""
    q, k, v, _ = drawn([9], [9], dim=16)
    y = varlen_attention(
        q, k, v, *2 * (SequenceOffsets.from_lengths([9]),), causal=True, scale=50.0
    )
    torch.testing.assert_close(y[:, 0], v.repeat_interleave(2, 0)[:, 0])


def test_the_answer_of_the_backward_lies_as_that_of_the_forward():
    q, k, v, upstream = drawn([6, 3], [6, 3])
    starts = SequenceOffsets.from_lengths([6, 3]).starts
    out, lse = native.forward(q, k, v, starts, starts, True, 0.5)
    grads = native.backward(upstream, (q, k, v, starts, starts, out, lse), True, 0.5)
    assert lse.shape == q.shape[:2]
    for grad, each in zip(grads, (q, k, v), strict=True):
        assert grad.shape == each.shape and grad.transpose(0, 1).is_contiguous()
