"""Variants: masks of one mode, of the wrong diagonal, attention or id."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import ids, padded
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PreLayer,
    SelfAttention,
    earlier,
    feed_forward,
)
from tests.doctor.models.variants.case import Attention, language_model, variant


@variant("mode_dependent_mask", ids(2, 12))
def causal_in_train_mode_only(broken):
    class Modal(Attention):
        def attend_heads(self, q, k, v, visible):
            is_causal = self.training if broken else True
            return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    return language_model(Modal)


@variant("hidden_diagonal", ids(2, 12))
def diagonal_is_hidden(broken):
    class Strict(Attention):
        def attend_heads(self, q, k, v, visible):
            hidden = torch.ones(q.size(-2), k.size(-2), dtype=torch.bool).triu(0 if broken else 1)
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            return scores.masked_fill(hidden, -1e9).softmax(-1) @ v

    return language_model(Strict)


class Translator(nn.Module):
    """Encoder and decoder with nn.MultiheadAttention; `mask` makes the mask of the source."""

    def __init__(self, mask, causal_source=False):
        super().__init__()
        self.mask, self.causal_source = mask, causal_source
        self.source, self.target = nn.Embedding(50, 64), nn.Embedding(50, 64)
        self.positions = nn.Embedding(32, 64)
        self.encoder = nn.ModuleList([PreLayer(SelfAttention()) for _ in range(2)])
        self.own = nn.ModuleList([SelfAttention() for _ in range(2)])
        self.cross = nn.ModuleList(
            [nn.MultiheadAttention(64, 4, batch_first=True) for _ in range(2)]
        )
        self.feeds = nn.ModuleList([feed_forward() for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(64) for _ in range(8)])
        self.head = nn.Linear(64, 50)

    def forward(self, source, target):
        table = self.positions.weight
        memory = self.source(source) + table[: source.size(1)]
        x = self.target(target) + table[: target.size(1)]
        for layer in self.encoder:
            memory = layer(memory, visible=earlier(source.size(1)) if self.causal_source else None)
        memory = self.norms[-1](memory)
        hidden = self.mask(target.size(1), source.size(1))
        for i, (own, cross, feed) in enumerate(zip(self.own, self.cross, self.feeds, strict=True)):
            x = x + own(self.norms[3 * i](x), visible=earlier(target.size(1)))
            x = x + cross(self.norms[3 * i + 1](x), memory, memory, attn_mask=hidden)[0]
            x = x + feed(self.norms[3 * i + 2](x))
        return self.head(self.norms[-2](x))


def two_texts():
    """Return ids of a source and a target."""
    return torch.randint(1, 50, (2, 11)), torch.randint(1, 50, (2, 9))


def hide_later(queries, keys):
    """Return the mask that hides the keys behind each query."""
    return torch.ones(queries, keys, dtype=torch.bool).triu(1)


@variant("causal_cross_attention", two_texts)
def causal_mask_of_the_target_for_the_source(broken):
    return Translator(hide_later if broken else lambda queries, keys: None)


def padded_batch():
    """Return padded ids, the first row without padding."""
    tokens = padded()
    tokens[0] = torch.randint(1, 50, tokens.shape[1:])
    return tokens


@variant("padding_leak", padded_batch)
def mask_of_another_id_than_the_embedding(broken):
    class Encoder(LanguageModel):
        def __init__(self, layers):
            super().__init__(layers)
            self.tokens = nn.Embedding(50, 64, padding_idx=0)

        def masks(self, tokens):
            return {"visible": (tokens != (1 if broken else 0))[:, None, None]}

    return Encoder([PreLayer(SelfAttention()) for _ in range(2)])
