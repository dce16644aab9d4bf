"""Attention over packed sequences, at every kernel level, against one sequence at a time."""

import math
import os
import signal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from addnorm.core.errors import UserError
from addnorm.kernels import library
from addnorm.kernels.attention import native
from addnorm.kernels.attention.varlen import (
    MAX_HEAD_DIM,
    SequenceOffsets,
    can_use_varlen_native,
    varlen_attention,
)
from tests.bfloat16_bounds import assert_bfloat16_close

ALL_LEVELS = (*library.list_levels(), "off")
needs_native = pytest.mark.skipif(
    not library.get_availability(), reason=library.get_availability().reason
)


@pytest.fixture(params=ALL_LEVELS)
def kernel_level(request):
    with library.use_level(request.param):
        yield request.param


def reference_attention(q, k, v, lengths, key_lengths, *, causal, scale):
    """Compute attention one sequence at a time."""
    k, v = (each.repeat_interleave(len(q) // len(k), 0) for each in (k, v))
    out, start, key_start = [q[:, :0] @ k[:, :0].mT @ v[:, :0]], 0, 0
    for length, key_length in zip(lengths, key_lengths, strict=True):
        keys = slice(key_start, key_start + key_length)
        logits = q[:, start : start + length] @ k[:, keys].mT * scale
        if causal:
            future = torch.ones(length, length, dtype=torch.bool).triu(1)
            logits = logits.masked_fill(future, -math.inf)
        out.append(logits.softmax(-1) @ v[:, keys])  # zeros for 0 keys
        start, key_start = start + length, key_start + key_length
    return torch.cat(out, 1)


def random_inputs(
    lengths, key_lengths, *, heads=4, kv_heads=2, dim=12, dtype=torch.float32, seed=0
):
    """Return q, k, v and an output gradient in the memory layout of a projection."""
    generator = torch.Generator().manual_seed(seed)

    def one(tokens, count):
        x = torch.randn(tokens, count, dim, generator=generator, dtype=torch.float64)
        return x.to(dtype).transpose(0, 1)

    tokens, num_keys = sum(lengths), sum(key_lengths)
    return one(tokens, heads), one(num_keys, kv_heads), one(num_keys, kv_heads), one(tokens, heads)


def attend(q, k, v, lengths, key_lengths, **options):
    return varlen_attention(
        q,
        k,
        v,
        SequenceOffsets.from_lengths(lengths),
        SequenceOffsets.from_lengths(key_lengths),
        **options,
    )


def assert_matches_reference(
    tensors, lengths, key_lengths, *, causal, scale=0.3, rtol=1e-4, atol=1e-5
):
    """Compare output and gradients with the reference in float64."""
    *inputs, upstream = tensors
    leaves = [each.detach().requires_grad_() for each in inputs]
    y = attend(*leaves, lengths, key_lengths, causal=causal, scale=scale)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    expected = reference_attention(*exact, lengths, key_lengths, causal=causal, scale=scale)
    grads = torch.autograd.grad(y, leaves, upstream)
    expected_grads = torch.autograd.grad(expected, exact, upstream.double())
    for actual, expected_tensor in zip((y, *grads), (expected, *expected_grads), strict=True):
        torch.testing.assert_close(actual.double(), expected_tensor, rtol=rtol, atol=atol)


def assert_bfloat16_matches_reference(tensors, lengths, *, causal, scale=0.3):
    """Compare output and gradients with the reference in float32, up to rounding."""
    *inputs, upstream = tensors
    leaves = [each.detach().requires_grad_() for each in inputs]
    y = attend(*leaves, lengths, lengths, causal=causal, scale=scale)
    exact = [each.detach().float().requires_grad_() for each in inputs]

    def run_reference():
        y = reference_attention(*exact, lengths, lengths, causal=causal, scale=scale)
        return [y, *torch.autograd.grad(y, exact, upstream.float())]

    assert_bfloat16_close([y, *torch.autograd.grad(y, leaves, upstream)], run_reference)


SEQUENCE_LENGTHS = st.lists(st.integers(0, 40), max_size=5)


@settings(max_examples=25)
@given(SEQUENCE_LENGTHS, st.sampled_from([1, 5, 8, 16, 33]), st.booleans(), st.integers(0, 99))
@pytest.mark.parametrize("level", ALL_LEVELS)
def test_self_attention_matches_reference_for_any_lengths(level, lengths, dim, causal, seed):
    with library.use_level(level):
        assert_matches_reference(
            random_inputs(lengths, lengths, dim=dim, seed=seed), lengths, lengths, causal=causal
        )


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=5), st.integers(0, 99))
@pytest.mark.parametrize("level", ALL_LEVELS)
def test_cross_attention_matches_reference_for_any_lengths(level, pairs, seed):
    lengths, key_lengths = [list(each) for each in zip(*pairs, strict=True)] or ([], [])
    with library.use_level(level):
        inputs = random_inputs(lengths, key_lengths, heads=3, kv_heads=3, dim=10, seed=seed)
        assert_matches_reference(inputs, lengths, key_lengths, causal=False)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 6), (6, 3), (6, 2), (6, 1)])
def test_grouped_key_heads(kernel_level, heads, kv_heads):
    lengths = [7, 1, 19]
    inputs = random_inputs(lengths, lengths, heads=heads, kv_heads=kv_heads)
    assert_matches_reference(inputs, lengths, lengths, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_sequences_longer_than_a_block(kernel_level, causal):
    lengths = [300, 2, 129]
    inputs = random_inputs(lengths, lengths, heads=2, kv_heads=1, dim=20)
    assert_matches_reference(inputs, lengths, lengths, causal=causal)


def test_very_different_numbers_of_queries_and_keys(kernel_level):
    lengths, key_lengths = [3, 280], [530, 2]
    inputs = random_inputs(lengths, key_lengths, heads=2, kv_heads=2, dim=8)
    assert_matches_reference(inputs, lengths, key_lengths, causal=False)


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_more_than_4096_tokens_of_one_sequence(causal):
    lengths = [4500]
    tensors = random_inputs(lengths, lengths, heads=1, kv_heads=1, dim=8)
    *inputs, upstream = tensors
    leaves, expected_leaves = (
        [each.detach().requires_grad_() for each in inputs] for _ in range(2)
    )
    y = attend(*leaves, lengths, lengths, causal=causal, scale=1.0)
    expected = nn.functional.scaled_dot_product_attention(
        *expected_leaves, is_causal=causal, scale=1.0
    )
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    grads = zip(
        torch.autograd.grad(y, leaves, upstream),
        torch.autograd.grad(expected, expected_leaves, upstream),
        strict=True,
    )
    for actual, expected_tensor in grads:
        torch.testing.assert_close(actual, expected_tensor, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [6, 16, 40])
def test_bfloat16_matches_float32_reference(kernel_level, dim):
    lengths = [5, 0, 21]
    inputs = random_inputs(lengths, lengths, dim=dim, dtype=torch.bfloat16)
    assert_bfloat16_matches_reference(inputs, lengths, causal=True)


@pytest.mark.parametrize("layout", ["dense", "features apart", "every second", "one for all"])
def test_strided_inputs(kernel_level, layout):
    lengths = [9, 4]
    dense = random_inputs(lengths, lengths, heads=2, kv_heads=2, dim=16)
    if layout == "dense":
        strided = [each.contiguous() for each in dense]
    elif layout == "features apart":
        strided = [each.mT.contiguous().mT for each in dense]
    elif layout == "every second":
        strided = [each.repeat_interleave(2, 1)[:, ::2] for each in dense]
    else:
        strided = dense = [each[:1].expand(2, -1, -1) for each in dense]
    assert all(one.equal(other) for one, other in zip(strided, dense, strict=True))
    assert_matches_reference(strided, lengths, lengths, causal=True)


def test_output_has_token_major_layout(kernel_level):
    q, k, v, _ = random_inputs([6, 3], [6, 3])
    y = attend(q, k, v, [6, 3], [6, 3], scale=1.0)
    assert y.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_empty_batch(kernel_level, lengths):
    inputs = random_inputs(lengths, lengths)
    assert_matches_reference(inputs, lengths, lengths, causal=False)


def test_query_without_keys_has_zero_output_and_gradient(kernel_level):
    q, k, v, upstream = random_inputs([4, 3], [0, 5])
    q, k, v = (each.detach().requires_grad_() for each in (q, k, v))
    y = attend(q, k, v, [4, 3], [0, 5], scale=1.0)
    dq, dk, dv = torch.autograd.grad(y, (q, k, v), upstream)
    assert not y[:, :4].any() and not dq[:, :4].any()
    assert y[:, 4:].all() and all(each.isfinite().all() for each in (dq, dk, dv))
    no_keys = attend(q, k[:, :0], v[:, :0], [4, 3], [0, 0], scale=1.0)
    assert not no_keys.any()
    assert not torch.autograd.grad(no_keys, q, upstream)[0].any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_non_finite_values_stay_in_their_sequence(kernel_level, where, value):
    lengths = [20, 20, 20]
    tensors = dict(zip("qkvg", random_inputs(lengths, lengths, kv_heads=4, dim=8), strict=True))
    tensors[where] = tensors[where].clone()
    tensors[where][:, 25, 3] = value
    inputs = [tensors[name].detach().requires_grad_() for name in "qkv"]
    y = attend(*inputs, lengths, lengths, scale=1.0)
    grads = torch.autograd.grad(y, inputs, tensors["g"])
    expected_inputs = [
        each.detach().unflatten(1, (3, 20)).transpose(0, 1).requires_grad_() for each in inputs
    ]
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        expected = nn.functional.scaled_dot_product_attention(*expected_inputs, scale=1.0)
    expected_grads = torch.autograd.grad(
        expected, expected_inputs, tensors["g"].unflatten(1, (3, 20)).transpose(0, 1)
    )
    actual = [each.unflatten(1, (3, 20)).transpose(0, 1) for each in (y, *grads)]
    torch.testing.assert_close(actual[0], expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert not actual[0][1].isfinite().all() or value == -math.inf
    for actual_grad, expected_grad in zip(actual[1:], expected_grads, strict=True):
        assert actual_grad[::2].isfinite().all()
        if kernel_level != "off":  # "off" runs another torch kernel than this reference
            assert not (actual_grad.isfinite() & ~expected_grad.isfinite()).any()


def test_large_logits_do_not_overflow(kernel_level):
    q, k, v, _ = random_inputs([15], [15], dim=8)
    y = attend(100 * q, 100 * k, v, [15], [15], scale=1.0)
    expected = reference_attention(100 * q, 100 * k, v, [15], [15], causal=False, scale=1.0)
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=1e-3)


def test_negative_zero_and_positive_scales(kernel_level):
    for scale in (-0.7, 0.0, 2.0):
        assert_matches_reference(
            random_inputs([8, 3], [8, 3]), [8, 3], [8, 3], causal=True, scale=scale
        )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("level", library.list_levels())
def test_results_do_not_depend_on_thread_count(level, causal):
    lengths = [30, 7, 140, 1, 64]
    *inputs, upstream = random_inputs(lengths, lengths, dim=24)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            leaves = [each.detach().requires_grad_() for each in inputs]
            with library.use_level(level):
                y = attend(*leaves, lengths, lengths, causal=causal, scale=0.2)
                results.append((y, *torch.autograd.grad(y, leaves, upstream)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(one.equal(two) for one, two in zip(results[0], other, strict=True))


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_computes_same_output():
    lengths = [30, 40, 50]
    q, k, v, _ = random_inputs(lengths, lengths)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = attend(q, k, v, lengths, lengths, scale=1.0)  # starts the thread pool
        bounds = SequenceOffsets.from_lengths(lengths)
        child = os.fork()
        if not child:
            signal.alarm(60)  # ends the child if it hangs
            is_equal = varlen_attention(q, k, v, bounds, bounds, scale=1.0).equal(expected)
            os._exit(0 if is_equal else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


def test_reference_gradients_pass_gradcheck():
    tensors = random_inputs([3, 0, 4], [2, 1, 5], heads=2, kv_heads=1, dim=3, dtype=torch.float64)
    inputs = tuple(each.detach().requires_grad_() for each in tensors[:3])
    assert not can_use_varlen_native(*inputs)
    assert torch.autograd.gradcheck(
        lambda q, k, v: attend(q, k, v, [3, 0, 4], [2, 1, 5], scale=0.7), inputs
    )


@needs_native
def test_second_order_gradients_match_reference():
    *inputs, upstream = random_inputs([5, 2], [5, 2], dim=4)

    def twice(dtype):
        q, k, v = (each.detach().to(dtype).requires_grad_() for each in inputs)
        y = attend(q, k, v, [5, 2], [5, 2], causal=True, scale=0.5)
        grads = torch.autograd.grad(y, (q, k, v), upstream.to(dtype), create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in grads), (q, k, v))

    # Only this backend has second-order gradients.
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        exact = twice(torch.float64)
    for actual, expected in zip(twice(torch.float32), exact, strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5)


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators_pass_opcheck(dtype):
    q, k, v, _ = random_inputs([5, 2], [4, 3], dtype=dtype)
    q, k, v = (each.detach().requires_grad_() for each in (q, k, v))
    starts = (
        SequenceOffsets.from_lengths([5, 2]).starts,
        SequenceOffsets.from_lengths([4, 3]).starts,
    )
    torch.library.opcheck(torch.ops.addnorm.varlen_attention, (q, k, v, *starts, False, 0.5))


@needs_native
@pytest.mark.slow
def test_compiled_graph_matches_eager():
    bounds = SequenceOffsets.from_lengths([5, 2])
    *inputs, upstream = random_inputs([5, 2], [5, 2])

    def attention(q, k, v):
        return 2 * varlen_attention(q, k, v, bounds, bounds, causal=True, scale=0.5)

    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    leaves, eager_leaves = ([each.detach().requires_grad_() for each in inputs] for _ in range(2))
    actual = compiled(*leaves)
    expected = 2 * varlen_attention(*eager_leaves, bounds, bounds, causal=True, scale=0.5)
    assert actual.equal(expected)
    for one, other in zip(
        torch.autograd.grad(actual, leaves, upstream),
        torch.autograd.grad(expected, eager_leaves, upstream),
        strict=True,
    ):
        assert one.equal(other)


def test_autocast_and_checkpoints(kernel_level):
    *inputs, upstream = random_inputs([6, 9], [6, 9])
    bounds = SequenceOffsets.from_lengths([6, 9])

    def run(q, k, v):
        return varlen_attention(q, k, v, bounds, bounds, causal=True, scale=0.5)

    with torch.autocast("cpu", torch.bfloat16):
        y = run(*inputs)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, run(*(each.bfloat16() for each in inputs)))
    leaves, plain_leaves = ([each.detach().requires_grad_() for each in inputs] for _ in range(2))
    checkpointed = torch.utils.checkpoint.checkpoint(run, *leaves, use_reentrant=False)
    for one, other in zip(
        torch.autograd.grad(checkpointed, leaves, upstream),
        torch.autograd.grad(run(*plain_leaves), plain_leaves, upstream),
        strict=True,
    ):
        assert one.equal(other)


@needs_native
def test_inputs_supported_by_native_library():
    q, k, v, _ = random_inputs([3], [3])
    assert can_use_varlen_native(q, k, v)
    assert can_use_varlen_native(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert not can_use_varlen_native(q.half(), k.half(), v.half())
    assert not can_use_varlen_native(q.double(), k.double(), v.double())
    assert not can_use_varlen_native(q, k, v.bfloat16())
    assert not can_use_varlen_native(q.to("meta"), k.to("meta"), v.to("meta"))
    wide = torch.zeros(1, 2, MAX_HEAD_DIM + 1)
    assert not can_use_varlen_native(wide, wide, wide)
    with library.use_level("off"):
        assert not can_use_varlen_native(q, k, v)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 4], "values that rise from 0 to the number of tokens"),
        ([1, 5], "values that rise from 0 to the number of tokens"),
        ([0, 9, 5], "values that rise from 0 to the number of tokens"),
        ([0, -3, 5], "values that rise from 0 to the number of tokens"),
        ([], "for queries and for keys, got 0 and 0"),
    ],
)
def test_invalid_starts_raise(kernel_level, starts, message):
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    bounds = SequenceOffsets(torch.tensor(starts, dtype=torch.int32), 5)
    with pytest.raises(UserError, match=message):
        varlen_attention(x, x, x, bounds, bounds, scale=1.0)


def test_invalid_shapes_raise(kernel_level):
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    whole, parts = SequenceOffsets.from_lengths([5]), SequenceOffsets.from_lengths([2, 3])
    with pytest.raises(UserError, match="as many keys as queries in every sequence"):
        attend(x, x, x, [2, 3], [3, 2], causal=True, scale=1.0)
    with pytest.raises(UserError, match="for queries and for keys, got 2 and 3"):
        varlen_attention(x, x, x, whole, parts, scale=1.0)
    with pytest.raises(
        UserError, match=r"starts: expected int32 .* got torch.int64 of shape \(2,\) on cpu"
    ):
        varlen_attention(x, x, x, whole._replace(starts=whole.starts.long()), whole, scale=1.0)
    for k, v in ((x[:, :4], x), (x[..., :3], x[..., :3]), (x[:0], x[:0]), (x[0], x[0])):
        with pytest.raises(
            UserError, match=r"expected shapes \(heads, N, K\) and twice \(kv_heads, M, K\)"
        ):
            varlen_attention(x, k, v, whole, whole, scale=1.0)
    with pytest.raises(UserError, match="where kv_heads divides heads"):
        varlen_attention(x[:1].expand(3, -1, -1), x, x, whole, whole, scale=1.0)


@needs_native
def test_native_forward_is_called(monkeypatch):
    called = []
    monkeypatch.setattr(native, "forward", lambda *args: called.append(1) or args[:2])
    q, k, v, _ = random_inputs([3], [3])
    attend(q, k, v, [3], [3], scale=1.0)
    assert called
