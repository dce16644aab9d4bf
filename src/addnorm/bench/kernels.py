"""The kernels, forward and backward, each against the plain way of torch."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.bench.base import OURS, Benchmark, Candidate, Candidates
from addnorm.kernels.add_norm.ops import add_norm
from addnorm.kernels.add_norm.reference import NormParams
from addnorm.kernels.attention import decode
from addnorm.kernels.attention.reference import SequenceOffsets
from addnorm.kernels.attention.varlen import varlen_attention
from addnorm.kernels.cross_entropy import linear_cross_entropy
from addnorm.kernels.cross_entropy_rows import logsumexp
from addnorm.kernels.dropout import Dropout
from addnorm.kernels.linear import linear

EAGER, COMPILED = "torch eager", "torch.compile"
TOKENS, DIM, CLASSES, DROPOUT_RATE = 2048, 256, 8000, 0.1
HEAD_DIMS = (16, 64)
DECODE_SHAPES = ((1, 20), (1, 100), (5, 100))
LINEAR_SHAPES = ((8, (256, 256)), (32, (256, 256)), (32, (8000, 256)), (160, (1024, 256)))
ADD_NORM_SHAPES = ((2048, 256), (1024, 64), (4096, 512))
CACHE_FILL_ELEMENTS = 8_000_000
"""Numbers that fill the caches."""
CALLS_PER_TIMING = 10
"""Calls that are timed together: one alone is too short for the clock."""

AddNormFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def benches() -> Iterator[Benchmark]:
    """With dropout, without it, and the others."""
    for tokens, dim in ADD_NORM_SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            for rms, rate, goals in (
                (False, DROPOUT_RATE, {EAGER: 4.0}),
                (True, DROPOUT_RATE, {EAGER: 8.0}),
                (False, 0.0, {EAGER: 1.3, COMPILED: 2.0}),
            ):
                name = f"{'dropout+' if rate else ''}add+{'RMSNorm' if rms else 'LayerNorm'}"
                yield Benchmark(
                    f"{name} {tokens}x{dim}",
                    partial(add_norm_candidates, tokens, dim, rms=rms, rate=rate, dtype=dtype),
                    goals,
                    dtype=str(dtype).removeprefix("torch."),
                    rounds=31,
                )
    for dim in HEAD_DIMS:
        name = f"attention of packed sentences, heads of {dim}"
        yield Benchmark(name, partial(attention_candidates, dim), {}, rounds=31)
    for queries, keys in DECODE_SHAPES:
        name = f"attention of {queries} to {keys} keys, no gradient"
        yield Benchmark(name, partial(decode_attention_candidates, queries, keys), {}, rounds=31)
    for rows, weights in LINEAR_SHAPES:
        name = f"linear map of {rows} rows, {weights[1]} to {weights[0]}, no gradient"
        yield Benchmark(name, partial(linear_candidates, rows, *weights), {}, rounds=31)
    yield Benchmark("output layer with cross entropy", cross_entropy_candidates, {})
    yield Benchmark("logsumexp", logsumexp_candidates, {}, rounds=31)
    yield Benchmark("dropout", dropout_candidates, {}, rounds=31)


def _repeat_calls(candidate: Candidate) -> Candidate:
    """So many calls that the clock can tell them."""

    def times() -> None:
        for _ in range(CALLS_PER_TIMING):
            candidate()

    return times


def add_norm_candidates(
    tokens: int, dim: int, *, rms: bool, rate: float, dtype: torch.dtype
) -> Candidates:
    """N(x + dropout(f))."""
    x, f, upstream = (torch.randn(tokens, dim).to(dtype) for _ in range(3))
    weight, bias = torch.randn(dim, requires_grad=True), torch.randn(dim, requires_grad=True)
    given = x.requires_grad_(), f.requires_grad_(), weight, None if rms else bias

    def plain(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        s = x + (F.dropout(f, rate) if rate else f)
        gain, shift = weight.to(dtype), None if bias is None else bias.to(dtype)
        if rms:
            return F.rms_norm(s, (dim,), gain, 1e-6)
        return F.layer_norm(s, (dim,), gain, shift, 1e-5)

    def ours(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return add_norm(x, f, NormParams(rms, weight, bias, 1e-6 if rms else 1e-5), rate=rate)

    def run(way: AddNormFunction) -> Candidate:
        inputs = [each for each in given if each is not None]
        return _repeat_calls(lambda: torch.autograd.grad(way(*given), inputs, upstream))

    ways: Candidates = {OURS: run(ours), EAGER: run(plain)}
    if shutil.which("g++") and not rate:
        ways[COMPILED] = run(torch.compile(plain))
    return ways


def attention_candidates(dim: int) -> Candidates:
    """64 sentences of 5 to 100 tokens, 28 on average, 4 heads; torch's has their padding."""
    chance = torch.Generator().manual_seed(0)
    draws = torch.empty(64).log_normal_(3.2, 0.5, generator=chance)
    lengths = draws.clamp(5, 100).long()
    bounds = SequenceOffsets.from_lengths(lengths.tolist())
    packed = [torch.randn(int(lengths.sum()), 4, dim).transpose(0, 1) for _ in range(3)]
    longest = int(lengths.max())
    padded = [torch.randn(64, 4, longest, dim) for _ in range(3)]
    scale = dim**-0.5
    mask = (torch.arange(longest) < lengths[:, None])[:, None, None, :]

    def run(inputs: list[Tensor], attend: Callable[..., Tensor]) -> Candidate:
        inputs = [each.requires_grad_() for each in inputs]
        upstream = torch.randn_like(inputs[0])
        return lambda: torch.autograd.grad(attend(*inputs), inputs, upstream)

    return {
        OURS: run(packed, lambda q, k, v: varlen_attention(q, k, v, bounds, bounds, scale=scale)),
        EAGER: run(padded, partial(F.scaled_dot_product_attention, attn_mask=mask)),
    }


def decode_attention_candidates(queries: int, keys: int) -> Candidates:
    """As when a text grows by a token: 32 rows, 4 heads of 64 features."""
    q, k, v = (torch.randn(32, 4, count, 64) for count in (queries, keys, keys))

    return {
        OURS: _repeat_calls(lambda: decode.decode_attention(q, k, v, None, scale=0.125)),
        EAGER: _repeat_calls(lambda: F.scaled_dot_product_attention(q, k, v)),
    }


def linear_candidates(rows: int, columns: int, depth: int) -> Candidates:
    """As when texts grow by a token: so many matrices in turn that none stays in the cache."""
    x, bias = torch.randn(rows, depth), torch.randn(columns)
    weights = [
        torch.randn(columns, depth) for _ in range(max(1, CACHE_FILL_ELEMENTS // (columns * depth)))
    ]

    def run(way: Callable[..., Tensor]) -> Candidate:
        def every() -> None:
            with torch.inference_mode():
                for weight in weights:
                    way(x, weight, bias)

        return every

    return {OURS: run(linear), EAGER: run(F.linear)}


def logsumexp_candidates() -> Candidates:
    """log of the sum of exp over 8,000 classes, of 32 rows."""
    logits = torch.randn(32, CLASSES)
    return {
        OURS: _repeat_calls(lambda: logsumexp(logits)),
        EAGER: _repeat_calls(lambda: logits.logsumexp(-1)),
    }


def dropout_candidates() -> Candidates:
    """Of 2,048 x 256, forward and backward."""
    x = torch.randn(TOKENS, DIM, requires_grad=True)
    upstream, ours, plain = (
        torch.randn(TOKENS, DIM),
        Dropout(DROPOUT_RATE),
        nn.Dropout(DROPOUT_RATE),
    )

    def run(way: nn.Module) -> Candidate:
        return lambda: torch.autograd.grad(way(x), x, upstream)

    return {OURS: run(ours), EAGER: run(plain)}


def cross_entropy_candidates() -> Candidates:
    """2,048 tokens, 256 features, 8,000 classes."""
    h = torch.randn(TOKENS, DIM, requires_grad=True)
    table = torch.randn(CLASSES, DIM, requires_grad=True)
    targets = torch.randint(CLASSES, (TOKENS,))

    def plain() -> None:
        loss = F.cross_entropy(h @ table.T, targets, label_smoothing=0.1, reduction="sum")
        torch.autograd.grad(loss, (h, table))

    def ours() -> None:
        torch.autograd.grad(linear_cross_entropy(h, table, targets, smoothing=0.1).loss, (h, table))

    return {OURS: ours, EAGER: plain}
