"""Third batch: positions."""

import math

import torch
from torch import nn

from tests.doctor.models.review.case import bug, ids, stream
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PostLayer,
    PreLayer,
    SelfAttention,
    merge_heads,
    softmax_attention,
    split_heads,
)

SAME = "warning or error: all tokens of a sequence get the same position"
HEADS = "warning or error: the rotary embedding counts heads instead of tokens"
BATCH = "error or warning: the examples of a batch mix"


def sinusoids(length=64, dim=64):
    """Return the table of the original Transformer."""
    angle = torch.arange(length)[:, None] * torch.exp(
        torch.arange(0, dim, 2) * (-math.log(10000.0) / dim)
    )
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


@bug("attention axis", "https://github.com/songyangco/GETNext/issues/2", BATCH, ids(3, 10))
def getnext_attends_over_the_batch(broken):
    class GetNext(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.poi = nn.Embedding(50, dim)
            self.register_buffer("pe", sinusoids()[:, None])
            self.layers = nn.ModuleList([nn.TransformerEncoderLayer(dim, 4, 128) for _ in range(2)])
            self.decoder = nn.Linear(dim, 50)

        def forward(self, tokens):
            x = self.poi(tokens) * 8.0
            x = x if broken else x.transpose(0, 1)
            x = x + self.pe[: x.size(0)]
            for layer in self.layers:
                x = layer(x)
            x = x if broken else x.transpose(0, 1)
            return self.decoder(x)

    return GetNext()


@bug("positions", "https://github.com/NeuracoreAI/neuracore/pull/154", SAME, ids(4, 10))
def neuracore_unsqueezed_axis(broken):
    class PositionalEncoding(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("pe", sinusoids().unsqueeze(0 if broken else 1))

        def forward(self, x):  # (tokens, batch, features)
            return x + (self.pe[:, : x.size(1)] if broken else self.pe[: x.size(0)])

    class Model(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.tokens, self.encoding = nn.Embedding(50, dim), PositionalEncoding()
            self.layers = nn.ModuleList(
                [nn.TransformerEncoderLayer(dim, 4, 128, norm_first=True) for _ in range(3)]
            )
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 7)

        def forward(self, ids):
            x = self.encoding(self.tokens(ids).permute(1, 0, 2))
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x)).permute(1, 0, 2)

    return Model()


def rotate(x, frequencies):
    """Rotate the interleaved pairs of the last axis."""
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = frequencies.cos(), frequencies.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


@bug("positions", "https://github.com/NVIDIA/audio-flamingo/issues/27", HEADS, stream(2, 14, 64))
def audio_flamingo_rotary(broken):
    class Attention(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, size = heads, dim // heads
            self.w_q, self.w_k, self.w_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
            self.fc = nn.Linear(dim, dim)
            inverse = 1.0 / 10000 ** (torch.arange(0, size, 2) / size)
            self.register_buffer("freqs", torch.arange(64)[:, None] * inverse)

        def rotary(self, t):
            return rotate(t, self.freqs[: t.shape[-2]])

        def forward(self, x):
            b, n, _ = x.shape
            q, k, v = (w(x).view(b, n, self.heads, -1) for w in (self.w_q, self.w_k, self.w_v))
            if broken:
                q, k = self.rotary(q), self.rotary(k)
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            if not broken:
                q, k = self.rotary(q), self.rotary(k)
            return self.fc(merge_heads(softmax_attention(q, k, v)))

    layers = [PreLayer(Attention()) for _ in range(3)]
    return nn.Sequential(*layers, nn.LayerNorm(64), nn.Linear(64, 12))


@bug("positions", "https://github.com/tensorgi/TPA/issues/4", HEADS, ids(2, 14))
def tpa_latent_attention_rotary(broken):
    class Rotary(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.register_buffer("inverse", 1.0 / 10000 ** (torch.arange(0, dim, 2) / dim))

        def forward(self, x):  # expects (batch, tokens, heads, features)
            angle = torch.arange(x.shape[1])[:, None] * self.inverse
            return rotate(x, angle[None, :, None, :])

    class LatentAttention(nn.Module):
        def __init__(self, dim=64, heads=4, latent=24, rope=8):
            super().__init__()
            self.heads, self.size, self.rope = heads, dim // heads, rope
            self.q = nn.Linear(dim, heads * (self.size + rope), bias=False)
            self.down, self.k_rope = (
                nn.Linear(dim, latent, bias=False),
                nn.Linear(dim, heads * rope),
            )
            self.norm = nn.RMSNorm(latent)
            self.up = nn.Linear(latent, heads * 2 * self.size, bias=False)
            self.out, self.rotary = nn.Linear(dim, dim, bias=False), Rotary(rope)

        def turn(self, x):  # (batch, heads, tokens, features)
            return self.rotary(x) if broken else self.rotary(x.transpose(1, 2)).transpose(1, 2)

        def forward(self, x, visible=None):
            q, q_rope = split_heads(self.q(x), self.heads).split([self.size, self.rope], -1)
            k, v = split_heads(self.up(self.norm(self.down(x))), self.heads).chunk(2, -1)
            k_rope = split_heads(self.k_rope(x), self.heads)
            q = torch.cat([q, self.turn(q_rope)], -1)
            k = torch.cat([k, self.turn(k_rope)], -1)
            return self.out(merge_heads(softmax_attention(q, k, v, visible=visible)))

    class Model(LanguageModel):
        def embed(self, ids):
            return self.tokens(ids)

    model = Model([PreLayer(LatentAttention()) for _ in range(3)], causal=True)
    del model.positions
    return model


@bug(
    "positions",
    "https://github.com/d2l-ai/d2l-en/pull/2121",
    "error or warning: the learned positions get no gradient (.data is detached)",
    ids(2, 12),
)
def d2l_positions_data(broken):
    class Bert(LanguageModel):
        def __init__(self):
            super().__init__([PostLayer(SelfAttention()) for _ in range(3)], final_norm=False)
            self.positions = None
            self.pos_embedding = nn.Parameter(torch.randn(1, 32, 64))

        def embed(self, ids):
            x = self.tokens(ids)
            table = self.pos_embedding.data if broken else self.pos_embedding
            return x + table[:, : x.shape[1]]

    return Bert()
