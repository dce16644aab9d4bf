"""Attention over packed sequences: against each sequence for itself, by every way it can go."""

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
from tests.rounding import assert_bfloat16_close

WAYS = (*library.levels(), "off")
needs_native = pytest.mark.skipif(
    not library.get_availability(), reason=library.get_availability().reason
)


@pytest.fixture(params=WAYS)
def way(request):
    with library.use_level(request.param):
        yield request.param


def twin(q, k, v, lengths, key_lengths, *, causal, scale):
    """Sequence by sequence, in the words of the definition."""
    k, v = (each.repeat_interleave(len(q) // len(k), 0) for each in (k, v))
    out, first, key_first = [q[:, :0] @ k[:, :0].mT @ v[:, :0]], 0, 0
    for length, key_length in zip(lengths, key_lengths, strict=True):
        seen = slice(key_first, key_first + key_length)
        logits = q[:, first : first + length] @ k[:, seen].mT * scale
        if causal:
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            logits = logits.masked_fill(later, -math.inf)
        out.append(logits.softmax(-1) @ v[:, seen])  # 0 keys: a sum of nothing
        first, key_first = first + length, key_first + key_length
    return torch.cat(out, 1)


def drawn(lengths, key_lengths, *, heads=4, kv_heads=2, dim=12, dtype=torch.float32, seed=0):
    """q, k, v and a gradient, laid out as a projection leaves them."""
    chance = torch.Generator().manual_seed(seed)

    def one(tokens, count):
        x = torch.randn(tokens, count, dim, generator=chance, dtype=torch.float64)
        return x.to(dtype).transpose(0, 1)

    tokens, seen = sum(lengths), sum(key_lengths)
    return one(tokens, heads), one(seen, kv_heads), one(seen, kv_heads), one(tokens, heads)


def ours(q, k, v, lengths, key_lengths, **how):
    return varlen_attention(
        q,
        k,
        v,
        SequenceOffsets.from_lengths(lengths),
        SequenceOffsets.from_lengths(key_lengths),
        **how,
    )


def agree(given, lengths, key_lengths, *, causal, scale=0.3, rtol=1e-4, atol=1e-5):
    """Output and gradients of ours and of the twin in float64."""
    *inputs, upstream = given
    mine = [each.detach().requires_grad_() for each in inputs]
    y = ours(*mine, lengths, key_lengths, causal=causal, scale=scale)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    wanted = twin(*exact, lengths, key_lengths, causal=causal, scale=scale)
    grads = torch.autograd.grad(y, mine, upstream)
    wanted_grads = torch.autograd.grad(wanted, exact, upstream.double())
    for got, want in zip((y, *grads), (wanted, *wanted_grads), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=rtol, atol=atol)


def agree_in_bfloat16(given, lengths, *, causal, scale=0.3):
    """Output and gradients of ours and of the reference in float32, up to rounding."""
    *inputs, upstream = given
    mine = [each.detach().requires_grad_() for each in inputs]
    y = ours(*mine, lengths, lengths, causal=causal, scale=scale)
    exact = [each.detach().float().requires_grad_() for each in inputs]

    def run_reference():
        y = twin(*exact, lengths, lengths, causal=causal, scale=scale)
        return [y, *torch.autograd.grad(y, exact, upstream.float())]

    assert_bfloat16_close([y, *torch.autograd.grad(y, mine, upstream)], run_reference)


lengths_of_sequences = st.lists(st.integers(0, 40), max_size=5)


@settings(max_examples=25, deadline=None)
@given(lengths_of_sequences, st.sampled_from([1, 5, 8, 16, 33]), st.booleans(), st.integers(0, 99))
@pytest.mark.parametrize("level", WAYS)
def test_any_lengths_of_self_attention(level, lengths, dim, causal, seed):
    with library.use_level(level):
        agree(drawn(lengths, lengths, dim=dim, seed=seed), lengths, lengths, causal=causal)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=5), st.integers(0, 99))
@pytest.mark.parametrize("level", WAYS)
def test_any_lengths_of_cross_attention(level, pairs, seed):
    lengths, key_lengths = [list(each) for each in zip(*pairs, strict=True)] or ([], [])
    with library.use_level(level):
        given = drawn(lengths, key_lengths, heads=3, kv_heads=3, dim=10, seed=seed)
        agree(given, lengths, key_lengths, causal=False)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 6), (6, 3), (6, 2), (6, 1)])
def test_keys_shared_by_heads(way, heads, kv_heads):
    lengths = [7, 1, 19]
    given = drawn(lengths, lengths, heads=heads, kv_heads=kv_heads)
    agree(given, lengths, lengths, causal=True)


@pytest.mark.parametrize("causal", [False, True])
def test_sequences_longer_than_a_block(way, causal):
    lengths = [300, 2, 129]
    given = drawn(lengths, lengths, heads=2, kv_heads=1, dim=20)
    agree(given, lengths, lengths, causal=causal)


def test_many_keys_for_few_queries_and_few_for_many(way):
    lengths, key_lengths = [3, 280], [530, 2]
    given = drawn(lengths, key_lengths, heads=2, kv_heads=2, dim=8)
    agree(given, lengths, key_lengths, causal=False)


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_more_than_4096_tokens_of_one_sequence(causal):
    lengths = [4500]
    given = drawn(lengths, lengths, heads=1, kv_heads=1, dim=8)
    *inputs, upstream = given
    mine, theirs = ([each.detach().requires_grad_() for each in inputs] for _ in range(2))
    y = ours(*mine, lengths, lengths, causal=causal, scale=1.0)
    wanted = nn.functional.scaled_dot_product_attention(*theirs, is_causal=causal, scale=1.0)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    grads = zip(
        torch.autograd.grad(y, mine, upstream),
        torch.autograd.grad(wanted, theirs, upstream),
        strict=True,
    )
    for got, want in grads:
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [6, 16, 40])
def test_bfloat16_is_float32_rounded(way, dim):
    lengths = [5, 0, 21]
    given = drawn(lengths, lengths, dim=dim, dtype=torch.bfloat16)
    agree_in_bfloat16(given, lengths, causal=True)


@pytest.mark.parametrize("layout", ["dense", "features apart", "every second", "one for all"])
def test_inputs_need_not_be_dense(way, layout):
    lengths = [9, 4]
    plain = drawn(lengths, lengths, heads=2, kv_heads=2, dim=16)
    if layout == "dense":
        odd = [each.contiguous() for each in plain]
    elif layout == "features apart":
        odd = [each.mT.contiguous().mT for each in plain]
    elif layout == "every second":
        odd = [each.repeat_interleave(2, 1)[:, ::2] for each in plain]
    else:
        odd = plain = [each[:1].expand(2, -1, -1) for each in plain]
    assert all(one.equal(other) for one, other in zip(odd, plain, strict=True))
    agree(odd, lengths, lengths, causal=True)


def test_the_output_lies_as_its_caller_wants_it(way):
    q, k, v, _ = drawn([6, 3], [6, 3])
    y = ours(q, k, v, [6, 3], [6, 3], scale=1.0)
    assert y.transpose(0, 1).is_contiguous()


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_a_batch_without_tokens(way, lengths):
    given = drawn(lengths, lengths)
    agree(given, lengths, lengths, causal=False)


def test_a_query_without_keys_gets_zeros_and_gives_none(way):
    q, k, v, upstream = drawn([4, 3], [0, 5])
    q, k, v = (each.detach().requires_grad_() for each in (q, k, v))
    y = ours(q, k, v, [4, 3], [0, 5], scale=1.0)
    dq, dk, dv = torch.autograd.grad(y, (q, k, v), upstream)
    assert not y[:, :4].any() and not dq[:, :4].any()
    assert y[:, 4:].all() and all(each.isfinite().all() for each in (dq, dk, dv))
    nobody = ours(q, k[:, :0], v[:, :0], [4, 3], [0, 0], scale=1.0)
    assert not nobody.any()
    assert not torch.autograd.grad(nobody, q, upstream)[0].any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_what_is_not_finite_stays_in_its_sequence_and_goes_as_in_torch(way, where, value):
    lengths = [20, 20, 20]
    given = dict(zip("qkvg", drawn(lengths, lengths, kv_heads=4, dim=8), strict=True))
    given[where] = given[where].clone()
    given[where][:, 25, 3] = value
    inputs = [given[name].detach().requires_grad_() for name in "qkv"]
    y = ours(*inputs, lengths, lengths, scale=1.0)
    grads = torch.autograd.grad(y, inputs, given["g"])
    theirs = [
        each.detach().unflatten(1, (3, 20)).transpose(0, 1).requires_grad_() for each in inputs
    ]
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        wanted = nn.functional.scaled_dot_product_attention(*theirs, scale=1.0)
    wanted_grads = torch.autograd.grad(
        wanted, theirs, given["g"].unflatten(1, (3, 20)).transpose(0, 1)
    )
    got = [each.unflatten(1, (3, 20)).transpose(0, 1) for each in (y, *grads)]
    torch.testing.assert_close(got[0], wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert not got[0][1].isfinite().all() or value == -math.inf
    for mine, other in zip(got[1:], wanted_grads, strict=True):
        assert mine[::2].isfinite().all()
        if way != "off":  # which has another kernel of torch than the one it is compared with
            assert not (mine.isfinite() & ~other.isfinite()).any()


def test_large_logits_do_not_overflow(way):
    q, k, v, _ = drawn([15], [15], dim=8)
    y = ours(100 * q, 100 * k, v, [15], [15], scale=1.0)
    wanted = twin(100 * q, 100 * k, v, [15], [15], causal=False, scale=1.0)
    torch.testing.assert_close(y, wanted, rtol=1e-3, atol=1e-3)


def test_scales_of_either_sign_and_zero(way):
    for scale in (-0.7, 0.0, 2.0):
        agree(drawn([8, 3], [8, 3]), [8, 3], [8, 3], causal=True, scale=scale)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("level", library.levels())
def test_threads_change_no_bit(level, causal):
    lengths = [30, 7, 140, 1, 64]
    *inputs, upstream = drawn(lengths, lengths, dim=24)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            mine = [each.detach().requires_grad_() for each in inputs]
            with library.use_level(level):
                y = ours(*mine, lengths, lengths, causal=causal, scale=0.2)
                results.append((y, *torch.autograd.grad(y, mine, upstream)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(one.equal(two) for one, two in zip(results[0], other, strict=True))


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_fork_computes_the_same():
    lengths = [30, 40, 50]
    q, k, v, _ = drawn(lengths, lengths)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        wanted = ours(q, k, v, lengths, lengths, scale=1.0)  # starts the threads
        bounds = SequenceOffsets.from_lengths(lengths)
        child = os.fork()
        if not child:
            signal.alarm(60)  # ends it if it hangs
            same = varlen_attention(q, k, v, bounds, bounds, scale=1.0).equal(wanted)
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


def test_gradients_of_the_definition():
    given = drawn([3, 0, 4], [2, 1, 5], heads=2, kv_heads=1, dim=3, dtype=torch.float64)
    inputs = tuple(each.detach().requires_grad_() for each in given[:3])
    assert not can_use_varlen_native(*inputs)
    assert torch.autograd.gradcheck(
        lambda q, k, v: ours(q, k, v, [3, 0, 4], [2, 1, 5], scale=0.7), inputs
    )


@needs_native
def test_gradients_of_gradients_are_those_of_the_definition():
    *inputs, upstream = drawn([5, 2], [5, 2], dim=4)

    def twice(dtype):
        q, k, v = (each.detach().to(dtype).requires_grad_() for each in inputs)
        y = ours(q, k, v, [5, 2], [5, 2], causal=True, scale=0.5)
        grads = torch.autograd.grad(y, (q, k, v), upstream.to(dtype), create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in grads), (q, k, v))

    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):  # the others have none
        exact = twice(torch.float64)
    for got, want in zip(twice(torch.float32), exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


@needs_native
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operators_are_what_torch_wants_of_operators(dtype):
    q, k, v, _ = drawn([5, 2], [4, 3], dtype=dtype)
    q, k, v = (each.detach().requires_grad_() for each in (q, k, v))
    starts = (
        SequenceOffsets.from_lengths([5, 2]).starts,
        SequenceOffsets.from_lengths([4, 3]).starts,
    )
    torch.library.opcheck(torch.ops.addnorm.varlen_attention, (q, k, v, *starts, False, 0.5))


@needs_native
@pytest.mark.slow
def test_a_compiled_graph_has_the_operator():
    bounds = SequenceOffsets.from_lengths([5, 2])
    *inputs, upstream = drawn([5, 2], [5, 2])

    def attention(q, k, v):
        return 2 * varlen_attention(q, k, v, bounds, bounds, causal=True, scale=0.5)

    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    mine, theirs = ([each.detach().requires_grad_() for each in inputs] for _ in range(2))
    got = compiled(*mine)
    wanted = 2 * varlen_attention(*theirs, bounds, bounds, causal=True, scale=0.5)
    assert got.equal(wanted)
    for one, other in zip(
        torch.autograd.grad(got, mine, upstream),
        torch.autograd.grad(wanted, theirs, upstream),
        strict=True,
    ):
        assert one.equal(other)


def test_autocast_and_checkpoints(way):
    *inputs, upstream = drawn([6, 9], [6, 9])
    bounds = SequenceOffsets.from_lengths([6, 9])

    def run(q, k, v):
        return varlen_attention(q, k, v, bounds, bounds, causal=True, scale=0.5)

    with torch.autocast("cpu", torch.bfloat16):
        y = run(*inputs)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, run(*(each.bfloat16() for each in inputs)))
    mine, theirs = ([each.detach().requires_grad_() for each in inputs] for _ in range(2))
    kept = torch.utils.checkpoint.checkpoint(run, *mine, use_reentrant=False)
    for one, other in zip(
        torch.autograd.grad(kept, mine, upstream),
        torch.autograd.grad(run(*theirs), theirs, upstream),
        strict=True,
    ):
        assert one.equal(other)


@needs_native
def test_what_the_library_takes():
    q, k, v, _ = drawn([3], [3])
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
def test_starts_that_cannot_be(way, starts, message):
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    bounds = SequenceOffsets(torch.tensor(starts, dtype=torch.int32), 5)
    with pytest.raises(UserError, match=message):
        varlen_attention(x, x, x, bounds, bounds, scale=1.0)


def test_other_mistakes(way):
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0))
    whole, parts = SequenceOffsets.from_lengths([5]), SequenceOffsets.from_lengths([2, 3])
    with pytest.raises(UserError, match="as many keys as queries in every sequence"):
        ours(x, x, x, [2, 3], [3, 2], causal=True, scale=1.0)
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
def test_the_library_is_what_ran(monkeypatch):
    called = []
    monkeypatch.setattr(native, "forward", lambda *given: called.append(1) or given[:2])
    q, k, v, _ = drawn([3], [3])
    ours(q, k, v, [3], [3], scale=1.0)
    assert called
