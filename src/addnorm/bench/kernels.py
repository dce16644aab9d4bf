"""Benchmarks of the kernels, forward and backward, against the same operations in torch."""

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
"""Floats that exceed the caches."""
CALLS_PER_TIMING = 10
"""Calls per measurement; a single one is too short for the clock."""

AddNormFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def make_benchmarks() -> Iterator[Benchmark]:
    """Yield all benchmarks of this module."""
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
        for dtype in (torch.float32, torch.bfloat16):
            for sentences in (True, False):
                for causal in (False, True):
                    batch = "packed sentences" if sentences else "equal lengths"
                    yield Benchmark(
                        f"{'causal ' if causal else ''}attention of {batch}, heads of {dim}",
                        partial(
                            attention_candidates,
                            dim,
                            sentences=sentences,
                            causal=causal,
                            dtype=dtype,
                        ),
                        {},
                        dtype=str(dtype).removeprefix("torch."),
                        rounds=31,
                    )
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
    def run_calls() -> None:
        for _ in range(CALLS_PER_TIMING):
            candidate()

    return run_calls


def add_norm_candidates(
    tokens: int, dim: int, *, rms: bool, rate: float, dtype: torch.dtype
) -> Candidates:
    """Compare N(x + dropout(f))."""
    x, f, upstream = (torch.randn(tokens, dim).to(dtype) for _ in range(3))
    weight, bias = torch.randn(dim, requires_grad=True), torch.randn(dim, requires_grad=True)
    arguments = x.requires_grad_(), f.requires_grad_(), weight, None if rms else bias

    def plain(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        s = x + (F.dropout(f, rate) if rate else f)
        gain, shift = weight.to(dtype), None if bias is None else bias.to(dtype)
        if rms:
            return F.rms_norm(s, (dim,), gain, 1e-6)
        return F.layer_norm(s, (dim,), gain, shift, 1e-5)

    def ours(x: Tensor, f: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return add_norm(x, f, NormParams(rms, weight, bias, 1e-6 if rms else 1e-5), rate=rate)

    def run(function: AddNormFunction) -> Candidate:
        inputs = [each for each in arguments if each is not None]
        return _repeat_calls(lambda: torch.autograd.grad(function(*arguments), inputs, upstream))

    candidates: Candidates = {OURS: run(ours), EAGER: run(plain)}
    if shutil.which("g++") and not rate:
        candidates[COMPILED] = run(torch.compile(plain))
    return candidates


def attention_candidates(
    dim: int, *, sentences: bool, causal: bool, dtype: torch.dtype
) -> Candidates:
    """Compare attention over 64 sequences with 4 heads.

    Sentences have 5 to 100 tokens, 28 on average, which torch computes with their padding. With
    equal lengths of 32 tokens there is no padding: the comparison is between the kernels alone.
    """
    lengths = torch.full((64,), 32)
    if sentences:
        generator = torch.Generator().manual_seed(0)
        draws = torch.empty(64).log_normal_(3.2, 0.5, generator=generator)
        lengths = draws.clamp(5, 100).long()
    offsets = SequenceOffsets.from_lengths(lengths.tolist())
    packed = [torch.randn(int(lengths.sum()), 4, dim).to(dtype).transpose(0, 1) for _ in range(3)]
    longest = int(lengths.max())
    padded = [torch.randn(64, 4, longest, dim).to(dtype) for _ in range(3)]
    mask = None
    if sentences:
        mask = (torch.arange(longest) < lengths[:, None])[:, None, None, :]
        mask = mask & torch.ones(longest, longest, dtype=torch.bool).tril() if causal else mask

    def run(inputs: list[Tensor], attend: Callable[..., Tensor]) -> Candidate:
        inputs = [each.requires_grad_() for each in inputs]
        upstream = torch.randn_like(inputs[0])
        return lambda: torch.autograd.grad(attend(*inputs), inputs, upstream)

    ours = partial(varlen_attention, queries=offsets, keys=offsets, causal=causal, scale=dim**-0.5)
    plain = partial(
        F.scaled_dot_product_attention, attn_mask=mask, is_causal=causal and mask is None
    )
    return {OURS: run(packed, ours), EAGER: run(padded, plain)}


def decode_attention_candidates(queries: int, keys: int) -> Candidates:
    """Compare a step of incremental decoding: batch 32, 4 heads of 64 features."""
    q, k, v = (torch.randn(32, 4, count, 64) for count in (queries, keys, keys))

    return {
        OURS: _repeat_calls(lambda: decode.decode_attention(q, k, v, None, scale=0.125)),
        EAGER: _repeat_calls(lambda: F.scaled_dot_product_attention(q, k, v)),
    }


def linear_candidates(rows: int, columns: int, depth: int) -> Candidates:
    """Compare linear maps with enough different weights that none stays in the cache."""
    x, bias = torch.randn(rows, depth), torch.randn(columns)
    weights = [
        torch.randn(columns, depth) for _ in range(max(1, CACHE_FILL_ELEMENTS // (columns * depth)))
    ]

    def run(function: Callable[..., Tensor]) -> Candidate:
        def run_all() -> None:
            with torch.inference_mode():
                for weight in weights:
                    function(x, weight, bias)

        return run_all

    return {OURS: run(linear), EAGER: run(F.linear)}


def logsumexp_candidates() -> Candidates:
    """Compare the logsumexp of 32 rows of 8,000 classes."""
    logits = torch.randn(32, CLASSES)
    return {
        OURS: _repeat_calls(lambda: logsumexp(logits)),
        EAGER: _repeat_calls(lambda: logits.logsumexp(-1)),
    }


def dropout_candidates() -> Candidates:
    """Compare dropout of 2,048 x 256 features."""
    x = torch.randn(TOKENS, DIM, requires_grad=True)
    upstream, ours, plain = (
        torch.randn(TOKENS, DIM),
        Dropout(DROPOUT_RATE),
        nn.Dropout(DROPOUT_RATE),
    )

    def run(module: nn.Module) -> Candidate:
        return lambda: torch.autograd.grad(module(x), x, upstream)

    return {OURS: run(ours), EAGER: run(plain)}


def cross_entropy_candidates() -> Candidates:
    """Compare an output layer with loss: 2,048 tokens, 256 features, 8,000 classes."""
    h = torch.randn(TOKENS, DIM, requires_grad=True)
    table = torch.randn(CLASSES, DIM, requires_grad=True)
    targets = torch.randint(CLASSES, (TOKENS,))

    def plain() -> None:
        loss = F.cross_entropy(h @ table.T, targets, label_smoothing=0.1, reduction="sum")
        torch.autograd.grad(loss, (h, table))

    def ours() -> None:
        torch.autograd.grad(linear_cross_entropy(h, table, targets, smoothing=0.1).loss, (h, table))

    return {OURS: ours, EAGER: plain}
