"""Training-step benchmarks of translation models with equal size, dropout and optimizer."""

import importlib.util
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from addnorm.bench.base import OURS, Benchmark, Candidate, Candidates
from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, PAD, START
from addnorm.kernels.cross_entropy import IGNORE_INDEX
from addnorm.models import build
from addnorm.tasks import Objective, get_task

VOCAB, MAX_LENGTH, SMOOTHING, DROPOUT_RATE = 8000, 120, 0.1, 0.1
OURS_BY_LENGTH = f"{OURS}, by length"
SORT_POOL_FACTOR = 20
"""Ratio of sorted sentences to sentences in the batches."""
TORCH, HF, MATMUL_LIMIT = "nn.Transformer", "HF Marian", "its products alone, as one"
MATMUL_SIZE = 768
"""Size of the square matrices whose product estimates the peak speed of the machine."""

Batch = tuple[Tensor, Tensor]
"""Source and target ids, (B, S) and (B, T), as in `Objective`."""


@dataclass(frozen=True)
class ModelSize:
    """Layers per side, features and heads of a model, and target tokens of its batches."""

    depth: int
    dim: int
    heads: int
    tokens: int = 1000


WIDE, DEEP = ModelSize(6, 256, 4), ModelSize(18, 64, 4)


def make_benchmarks() -> Iterator[Benchmark]:
    """Yield benchmarks against peers, with random batches and with batches sorted by length."""
    for size, goals in (
        (
            WIDE,
            {f"{TORCH}, random": 4.0, f"{TORCH}, by length": 1.5, f"{HF}, by length": 1.25}
            | {MATMUL_LIMIT: 0.75, OURS_BY_LENGTH: 1.0},
        ),
        (DEEP, {f"{TORCH}, by length": 2.3, f"{HF}, by length": 1.5, OURS_BY_LENGTH: 1.0}),
    ):
        name = f"train {size.depth}+{size.depth} d={size.dim}"
        yield Benchmark(name, partial(build_candidates, size), goals, rounds=9)
    goals = {f"{TORCH}, by length": 1.8, f"{HF}, by length": 1.8}
    yield Benchmark(
        f"train {WIDE.depth}+{WIDE.depth} d={WIDE.dim}",
        partial(build_candidates, WIDE, bf16=True),
        goals,
        dtype="bfloat16",
        rounds=5,
    )


def build_candidates(size: ModelSize, *, bf16: bool = False) -> Candidates:
    """Build the candidates; each trains on batches with the same number of tokens."""
    if bf16 and not has_bfloat16():
        raise UserError("this CPU has no instructions for bfloat16; a step would take minutes")
    random, sorted_ = make_batches(size.tokens), make_batches(size.tokens, by_length=True)
    candidates: Candidates = {
        OURS: make_trainer(_build_addnorm(size), random, bf16=bf16),
        OURS_BY_LENGTH: make_trainer(_build_addnorm(size), sorted_, bf16=bf16),
    }
    if not bf16:
        candidates[MATMUL_LIMIT] = partial(run_matmuls, count_matmul_flops(candidates[OURS]))
        candidates[f"{TORCH}, random"] = make_trainer(_build_torch(size), random)
    candidates[f"{TORCH}, by length"] = make_trainer(_build_torch(size), sorted_, bf16=bf16)
    if importlib.util.find_spec("transformers"):
        candidates[f"{HF}, by length"] = make_trainer(_build_marian(size), sorted_, bf16=bf16)
    return candidates


def has_bfloat16() -> bool:
    """Return whether the CPU has bfloat16 instructions; otherwise torch emulates them."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def make_batches(tokens: int, *, by_length: bool = False, count: int = 6) -> list[Batch]:
    """Make batches of random sentences with realistic lengths.

    Lengths are log-normal with median 24; source and target differ by about a tenth.

    Args:
        tokens: upper limit of target tokens in a batch.
        by_length: sort a larger pool of sentences by length, and take evenly spaced batches of it.
        count: number of batches.
    """
    generator = torch.Generator().manual_seed(0)
    rows: list[Batch] = []
    total = 0
    while total < count * tokens * (SORT_POOL_FACTOR if by_length else 1):
        center = math.exp(math.log(24) + 0.5 * float(torch.randn((), generator=generator)))
        noise = [0.1 * float(torch.randn((), generator=generator)) for _ in range(2)]
        lengths = [int(min(max(4.0, center * (1 + each)), 117.0)) for each in noise]
        ids = [torch.randint(4, VOCAB, (length,), generator=generator) for length in lengths]
        rows.append((_add_end(ids[0]), _add_end(ids[1], START)))
        total += len(rows[-1][1])
    if by_length:
        rows.sort(key=lambda row: len(row[1]))
    groups: list[list[Batch]] = [[]]
    for row in rows:
        if groups[-1] and sum(len(each[1]) for each in groups[-1]) + len(row[1]) > tokens:
            groups.append([])
        groups[-1].append(row)
    step = len(groups) // count if by_length else 1
    return [
        (
            _pad_rows([row[0] for row in group], PAD),
            _pad_rows([row[1] for row in group], IGNORE_INDEX),
        )
        for group in groups[step // 2 :: step][:count]
    ]


def make_trainer(model: nn.Module, data: list[Batch], *, bf16: bool = False) -> Candidate:
    """Return a function that updates a model, (source, target) to summed loss, on each batch."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> None:
        for source, target in data:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = model(source, target)
            (loss / (target[:, 1:] != IGNORE_INDEX).sum()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def count_matmul_flops(candidate: Candidate) -> int:
    """Return the floating-point operations in matrix products of one call."""
    with FlopCounterMode(display=False) as counter:
        candidate()
    return counter.get_total_flops()


def run_matmuls(flops: int) -> None:
    """Run large matrix products with `flops` operations, as a lower bound of the time."""
    x = torch.ones(MATMUL_SIZE, MATMUL_SIZE)
    for _ in range(round(flops / (2 * MATMUL_SIZE**3))):
        x @ x


class _Loss(nn.Module):
    """Summed torch loss of a peer that maps (source, target) to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        logits = self.model(source, target[:, :-1].clamp(min=PAD))
        return F.cross_entropy(
            logits.flatten(0, 1).float(),
            target[:, 1:].flatten(),
            label_smoothing=SMOOTHING,
            reduction="sum",
        )


class _AddnormLoss(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.objective = Objective(model, get_task("translate"), smoothing=SMOOTHING)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = self.objective(source, target)[0]
        return loss


def _build_addnorm(size: ModelSize) -> nn.Module:
    model = build(
        kind="seq2seq",
        vocab=VOCAB,
        dim=size.dim,
        depth=size.depth,
        heads=size.heads,
        wiring="post_ln",
        dropout=DROPOUT_RATE,
        embed_scale="sqrt_dim",
        seed=0,
    )
    for stack in model.stacks:
        stack.packed = True
    return _AddnormLoss(model)


def _build_torch(size: ModelSize) -> nn.Module:
    return _Loss(_Transformer(size))


class _Transformer(nn.Module):
    """torch.nn.Transformer with tied embeddings and sinusoidal positions.

    Dropout acts on the branches only, as in the other candidates.
    """

    positions: Tensor

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.scale = math.sqrt(size.dim)
        self.table = nn.Embedding(VOCAB, size.dim)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.body = nn.Transformer(
                *(size.dim, size.heads, size.depth, size.depth, 4 * size.dim),
                dropout=DROPOUT_RATE,
                batch_first=True,
            )
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
            if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0
        self.dropout = nn.Dropout(DROPOUT_RATE)
        rates = torch.exp(torch.arange(0, size.dim, 2) * (-math.log(10_000) / size.dim))
        angles = torch.arange(MAX_LENGTH)[:, None] * rates
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), -1).flatten(1))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.bool)
        padding = source == PAD
        h = self.body(
            *(self._embed(source), self._embed(target)),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return F.linear(h, self.table.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.table(ids) * self.scale + self.positions[: ids.shape[1]])
        return x


def _build_marian(size: ModelSize) -> nn.Module:
    transformers: Any = import_module("transformers")  # untyped
    config = transformers.MarianConfig(
        vocab_size=VOCAB,
        d_model=size.dim,
        encoder_layers=size.depth,
        decoder_layers=size.depth,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=4 * size.dim,
        decoder_ffn_dim=4 * size.dim,
        max_position_embeddings=MAX_LENGTH,
        dropout=DROPOUT_RATE,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=START,
        attn_implementation="sdpa",
    )
    return _Loss(_Marian(transformers.MarianMTModel(config)))


class _Marian(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        logits: Tensor = self.model(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            decoder_input_ids=target,
            use_cache=False,
        ).logits
        return logits


def _add_end(ids: Tensor, *prefix: int) -> Tensor:
    return torch.cat((torch.tensor(prefix, dtype=torch.long), ids, torch.tensor([END])))


def _pad_rows(rows: list[Tensor], fill: int) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)
