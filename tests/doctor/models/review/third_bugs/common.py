"""Blocks that the bugs of the third batch share."""

import math

import torch
from torch import nn


def split_heads(x, heads):
    """Return (batch, heads, tokens, size of a head)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x):
    """Return (batch, tokens, features)."""
    return x.transpose(1, 2).flatten(2)


def softmax_attention(q, k, v, *, scale=None, visible=None, bias=None):
    """Return the attended values; `visible` is True where a query sees a key."""
    scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.size(-1)) if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return scores.softmax(-1) @ v


def earlier(length):
    """Return the visible pairs of a causal attention."""
    return torch.ones(length, length, dtype=torch.bool).tril()


class SelfAttention(nn.Module):
    """Attention with four projections."""

    def __init__(self, dim=64, heads=4, attend=softmax_attention):
        super().__init__()
        self.heads, self.attend = heads, attend
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, **masks):
        q, k, v = (split_heads(p(x), self.heads) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(merge_heads(self.attend(q, k, v, **masks)))


def feed_forward(dim=64, hidden=128):
    """Return a feed-forward network."""
    return nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


class PreLayer(nn.Module):
    """Pre-LN layer around a given attention."""

    def __init__(self, attention, dim=64):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention, self.mlp = attention, feed_forward(dim)

    def forward(self, x, **masks):
        x = x + self.attention(self.norm1(x), **masks)
        return x + self.mlp(self.norm2(x))


class PostLayer(PreLayer):
    """Post-LN layer around a given attention."""

    def forward(self, x, **masks):
        x = self.norm1(x + self.attention(x, **masks))
        return self.norm2(x + self.mlp(x))


class LanguageModel(nn.Module):
    """Embeddings, learned positions, layers, a final norm and a head."""

    def __init__(self, layers, dim=64, vocab=50, causal=False, final_norm=True):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(32, dim)
        self.layers, self.causal = nn.ModuleList(layers), causal
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        self.head = nn.Linear(dim, vocab)

    def embed(self, ids):
        return self.tokens(ids) + self.positions.weight[: ids.size(1)]

    def masks(self, ids):
        return {"visible": earlier(ids.size(1))} if self.causal else {}

    def forward(self, ids):
        x, masks = self.embed(ids), self.masks(ids)
        for layer in self.layers:
            x = layer(x, **masks)
        return self.head(self.norm(x))


class VisionModel(nn.Module):
    """Patches, a class token, layers, a final norm and a head."""

    def __init__(self, layers, dim=64, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 8, 8)
        self.cls = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def image(size=32, batch=2):
    """Return a function that draws images."""
    return lambda: torch.randn(batch, 3, size, size)
