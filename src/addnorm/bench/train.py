"""Training steps of translation models, all of one size, with one dropout and one optimizer."""

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
"""How much more sentences are sorted than are used."""
TORCH, HF, MATMUL_LIMIT = "nn.Transformer", "HF Marian", "its products alone, as one"
MATMUL_SIZE = 768
"""Of the square matrices whose product is the machine's limit."""

Batch = tuple[Tensor, Tensor]
"""Source and target, as in `Objective`."""


@dataclass(frozen=True)
class ModelSize:
    """Of a model: layers on each side, features, heads, and target tokens of a batch."""

    depth: int
    dim: int
    heads: int
    tokens: int = 1000


WIDE, DEEP = ModelSize(6, 256, 4), ModelSize(18, 64, 4)


def benches() -> Iterator[Benchmark]:
    """Ours in random order against peers in random order and with sentences of like length."""
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
    """A pass over as many tokens each."""
    if bf16 and not has_bfloat16():
        raise UserError("this CPU has no instructions for bfloat16; a step would take minutes")
    random, sorted_ = make_batches(size.tokens), make_batches(size.tokens, by_length=True)
    made: Candidates = {
        OURS: make_trainer(_build_addnorm(size), random, bf16=bf16),
        OURS_BY_LENGTH: make_trainer(_build_addnorm(size), sorted_, bf16=bf16),
    }
    if not bf16:
        made[MATMUL_LIMIT] = partial(run_matmuls, count_matmul_flops(made[OURS]))
        made[f"{TORCH}, random"] = make_trainer(_build_torch(size), random)
    made[f"{TORCH}, by length"] = make_trainer(_build_torch(size), sorted_, bf16=bf16)
    if importlib.util.find_spec("transformers"):
        made[f"{HF}, by length"] = make_trainer(_build_marian(size), sorted_, bf16=bf16)
    return made


def has_bfloat16() -> bool:
    """Whether the CPU multiplies in bfloat16 rather than imitating it."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def make_batches(tokens: int, *, by_length: bool = False, count: int = 6) -> list[Batch]:
    """Sentences whose lengths are spread like those of real ones, in batches of about so many
    target tokens: log-normal, 24 in the middle, both sides alike but for a tenth.

    by_length: sorted, as from a large corpus, of which some batches are taken at even distances
    """
    chance = torch.Generator().manual_seed(0)
    rows: list[Batch] = []
    total = 0
    while total < count * tokens * (SORT_POOL_FACTOR if by_length else 1):
        middle = math.exp(math.log(24) + 0.5 * float(torch.randn((), generator=chance)))
        lengths = [
            int(min(max(4.0, middle * (1 + 0.1 * float(torch.randn((), generator=chance)))), 117.0))
            for _ in range(2)
        ]
        ids = [torch.randint(4, VOCAB, (length,), generator=chance) for length in lengths]
        rows.append((_add_end(ids[0]), _add_end(ids[1], START)))
        total += len(rows[-1][1])
    if by_length:
        rows.sort(key=lambda row: len(row[1]))
    groups: list[list[Batch]] = [[]]
    for row in rows:
        if groups[-1] and sum(len(each[1]) for each in groups[-1]) + len(row[1]) > tokens:
            groups.append([])
        groups[-1].append(row)
    apart = len(groups) // count if by_length else 1
    return [
        (
            _pad_rows([row[0] for row in group], PAD),
            _pad_rows([row[1] for row in group], IGNORE_INDEX),
        )
        for group in groups[apart // 2 :: apart][:count]
    ]


def make_trainer(model: nn.Module, data: list[Batch], *, bf16: bool = False) -> Candidate:
    """An update on each batch; `model` is from (source, target) to the summed loss."""
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
    """Operations in matrix products of a call."""
    with FlopCounterMode(display=False) as counted:
        candidate()
    return counted.get_total_flops()


def run_matmuls(flops: int) -> None:
    """Large products of as many operations: what the machine can do at best."""
    x = torch.ones(MATMUL_SIZE, MATMUL_SIZE)
    for _ in range(round(flops / (2 * MATMUL_SIZE**3))):
        x @ x


class _Loss(nn.Module):
    """A peer: logits from (source, target), and torch's loss of them."""

    def __init__(self, answer: nn.Module) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        logits = self.answer(source, target[:, :-1].clamp(min=PAD))
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
    """torch's Transformer with a tied table and sinusoidal positions; it drops branches only, as
    the others do.
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
        dropped: Tensor = self.dropout(
            self.table(ids) * self.scale + self.positions[: ids.shape[1]]
        )
        return dropped


def _build_marian(size: ModelSize) -> nn.Module:
    transformers: Any = import_module("transformers")  # has no types
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
