"""Native attention at the boundaries of its blocks and vectors, and with unaligned memory."""

import math

import pytest
import torch
from torch import nn

from addnorm.kernels import library
from addnorm.kernels.attention import native
from addnorm.kernels.attention.reference import SequenceOffsets
from addnorm.kernels.attention.varlen import varlen_attention
from tests.kernels.attention.test_varlen import (
    assert_bfloat16_matches_reference,
    assert_matches_reference,
    attend,
    random_inputs,
)

LEVELS = library.list_levels() or [
    pytest.param("", marks=pytest.mark.skip(library.get_availability().reason))
]


@pytest.fixture(params=LEVELS, autouse=True)
def level(request):
    with library.use_level(request.param):
        yield request.param


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [8, 16, 21, 24, 48])
def test_lengths_around_block_boundaries(dim, causal):
    """The kernel processes blocks of 128 queries or keys and of 256 keys."""
    lengths = [127, 128, 129, 255, 256, 257]
    inputs = random_inputs(lengths, lengths, heads=2, kv_heads=1, dim=dim)
    assert_matches_reference(inputs, lengths, lengths, causal=causal)


@pytest.mark.parametrize("dim", [16, 21])
def test_different_key_lengths_around_block_boundaries(dim):
    lengths, key_lengths = [1, 128, 129, 13, 0, 2], [257, 256, 1, 129, 300, 0]
    inputs = random_inputs(lengths, key_lengths, heads=4, kv_heads=2, dim=dim)
    assert_matches_reference(inputs, lengths, key_lengths, causal=False)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [1, 3, 8, 16, 24, 32, 40, 64])
def test_all_short_lengths(dim, causal):
    lengths = list(range(27))
    inputs = random_inputs(lengths, lengths, heads=2, kv_heads=2, dim=dim)
    assert_matches_reference(inputs, lengths, lengths, causal=causal)


@pytest.mark.parametrize("dim", [16, 64, 70])
def test_bfloat16_around_block_boundaries(dim):
    lengths = [1, 64, 129]
    inputs = random_inputs(lengths, lengths, heads=2, kv_heads=1, dim=dim, dtype=torch.bfloat16)
    assert_bfloat16_matches_reference(inputs, lengths, causal=True, scale=dim**-0.5)


@pytest.mark.parametrize("offset", [1, 3])
def test_unaligned_and_strided_inputs(offset):
    """Inputs have unaligned addresses and gaps between tokens, as slices of a projection."""
    lengths = [30, 0, 7]

    def copy_to_offset(x):
        buffer = torch.zeros(x.shape[1], 3 * x.shape[0] * x.shape[2] + offset)
        part = buffer[:, offset : offset + x.shape[0] * x.shape[2]]
        part.copy_(x.transpose(0, 1).flatten(1))
        return part.unflatten(1, (x.shape[0], x.shape[2])).transpose(0, 1)

    dense = random_inputs(lengths, lengths, dim=16)
    strided = [copy_to_offset(each) for each in dense]
    assert all(each.data_ptr() % 16 for each in strided)
    assert_matches_reference(strided, lengths, lengths, causal=True)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100, 256, 257, 1000])
def test_backward_probabilities_sum_to_one(count):
    """The backward recomputes them from the saved log-sum-exp, so this checks that value."""
    q, k = torch.zeros(1, 8, 16), torch.zeros(1, count, 16)
    v = torch.zeros(1, count, 16, requires_grad=True)
    y = attend(q, k, v, [8], [count], scale=1.0)
    (dv,) = torch.autograd.grad(y, v, torch.ones_like(y))
    torch.testing.assert_close(dv * count / 8, torch.ones_like(dv), rtol=1e-6, atol=0)


@pytest.mark.parametrize("length", [40, 300])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_non_finite_values_propagate_as_in_torch(where, value, length):
    inputs = dict(zip("qkv", random_inputs([length], [length], heads=2, dim=16), strict=False))
    inputs[where] = inputs[where].clone()
    inputs[where][:, length // 2, 3] = value
    actual_inputs, expected_inputs = (
        [each.detach().requires_grad_() for each in inputs.values()] for _ in range(2)
    )
    y = attend(*actual_inputs, [length], [length], scale=1.0)
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        expected = nn.functional.scaled_dot_product_attention(
            *expected_inputs, scale=1.0, enable_gqa=True
        )
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    grads = torch.autograd.grad(y.sum(), actual_inputs)
    for actual_grad, expected_grad in zip(
        grads, torch.autograd.grad(expected.sum(), expected_inputs), strict=True
    ):
        assert not (actual_grad.isfinite() & ~expected_grad.isfinite()).any()


def test_first_causal_query_attends_only_to_itself():
    """The first query of a causal sequence sees one key, so its output is that value."""
    q, k, v, _ = random_inputs([9], [9], dim=16)
    y = varlen_attention(
        q, k, v, *2 * (SequenceOffsets.from_lengths([9]),), causal=True, scale=50.0
    )
    torch.testing.assert_close(y[:, 0], v.repeat_interleave(2, 0)[:, 0])


def test_gradients_have_token_major_layout():
    q, k, v, upstream = random_inputs([6, 3], [6, 3])
    starts = SequenceOffsets.from_lengths([6, 3]).starts
    out, lse = native.forward(q, k, v, starts, starts, True, 0.5)
    grads = native.backward(upstream, (q, k, v, starts, starts, out, lse), True, 0.5)
    assert lse.shape == q.shape[:2]
    for grad, each in zip(grads, (q, k, v), strict=True):
        assert grad.shape == each.shape and grad.transpose(0, 1).is_contiguous()
