"""Cases of the fifth batch and the building blocks that several of its models share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DIM, HEADS, TOKENS, BATCH, VOCAB = 32, 4, 12, 3, 50


@dataclass(frozen=True)
class Case:
    """A historic bug.

    `expect` says, in words written before the first run, what a finding must state to count.
    `build(fixed)` builds the broken model, or with `fixed` the model after the repair.
    """

    name: str
    kind: str
    source: str
    expect: str
    build: Callable[[bool], nn.Module]
    inputs: Callable[[], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options whose effect is checked; then `configure(fixed, **options)` builds the model."""
    configure: Callable[..., nn.Module] | None = None


@dataclass(frozen=True)
class Healthy:
    """A correct but unusual model."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]


def ids(batch: int = BATCH, tokens: int = TOKENS, vocab: int = VOCAB) -> Tensor:
    return torch.randint(1, vocab, (batch, tokens), generator=torch.Generator().manual_seed(7))


def features(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(8))


def keep_mask(batch: int = BATCH, tokens: int = TOKENS) -> Tensor:
    """1 for tokens, 0 for padding at the end; each row has another length."""
    lengths = torch.tensor([tokens - 3 * (row % 3) for row in range(batch)])
    return (torch.arange(tokens) < lengths[:, None]).long()


def text() -> dict[str, Tensor]:
    mask = keep_mask()
    return {"input_ids": ids() * mask, "attention_mask": mask}


def initialize(model: nn.Module, std: float = 0.02) -> nn.Module:
    """Matrices N(0, std^2), biases zero, norms untouched."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | nn.Conv2d):
            nn.init.normal_(module.weight, std=std)
            bias = getattr(module, "bias", None)
            if bias is not None:
                nn.init.zeros_(bias)
    return model


def split_heads(x: Tensor, heads: int = HEADS) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Self- or cross-attention; `keep` is true where a key may be read."""

    def __init__(self, dim: int = DIM, heads: int = HEADS, causal: bool = False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def forward(
        self, x: Tensor, keep: Tensor | None = None, memory: Tensor | None = None
    ) -> Tensor:
        source = x if memory is None else memory
        q, k, v = (split_heads(p, self.heads) for p in (self.q(x), self.k(source), self.v(source)))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if self.causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None, :].bool(), -1e9)
        return self.out(merge_heads(scores.softmax(-1) @ v))


class FeedForward(nn.Sequential):
    def __init__(self, dim: int = DIM, ratio: int = 4):
        super().__init__(nn.Linear(dim, ratio * dim), nn.GELU(), nn.Linear(ratio * dim, dim))


class PreBlock(nn.Module):
    def __init__(self, dim: int = DIM, heads: int = HEADS, causal: bool = False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn, self.mlp = Attention(dim, heads, causal), FeedForward(dim)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), keep)
        return x + self.mlp(self.norm2(x))


class PostBlock(nn.Module):
    def __init__(self, dim: int = DIM, heads: int = HEADS, causal: bool = False):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn, self.mlp = Attention(dim, heads, causal), FeedForward(dim)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.norm1(x + self.attn(x, keep))
        return self.norm2(x + self.mlp(x))


class Embed(nn.Module):
    """Token and learned position embeddings."""

    def __init__(self, vocab: int = VOCAB, dim: int = DIM, tokens: int = 64):
        super().__init__()
        self.token, self.position = nn.Embedding(vocab, dim), nn.Embedding(tokens, dim)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.token(input_ids) + self.position(torch.arange(input_ids.shape[1]))


class Decoder(nn.Module):
    """Causal language model around any blocks that map (batch, tokens, dim) to itself."""

    def __init__(self, *blocks: nn.Module, final: nn.Module | None = None):
        super().__init__()
        self.embed, self.blocks = Embed(), nn.ModuleList(blocks)
        self.final = nn.LayerNorm(DIM) if final is None else final
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        initialize(self)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))


class Encoder(nn.Module):
    """Token classifier around blocks that read (x, keep)."""

    def __init__(self, *blocks: nn.Module, final: nn.Module | None = None, out: int = 5):
        super().__init__()
        self.embed, self.blocks = Embed(), nn.ModuleList(blocks)
        self.final = nn.LayerNorm(DIM) if final is None else final
        self.head = nn.Linear(DIM, out)
        initialize(self)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x, attention_mask)
        return self.head(self.final(x))


class RMSNorm(nn.Module):
    def __init__(self, dim: int = DIM, eps: float = 1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).type_as(
            x
        ) * self.weight


def patches(images: Tensor, size: int) -> Tensor:
    """(batch, channels, H, W) to (batch, patches, channels * size * size)."""
    return F.unfold(images, size, stride=size).transpose(1, 2)
