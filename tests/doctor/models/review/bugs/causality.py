"""Causal masks that are inverted, ignored, misread or applied in the wrong place."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, stream

FUTURE = "error: the causal mask is inverted, positions see only the future"


@bug("causal mask", "https://github.com/pytorch/examples/issues/649", FUTURE, ids(2, 14))
def word_language_model_mask(broken):
    class TransformerModel(nn.Module):
        def __init__(self, ntoken=50, ninp=64):
            super().__init__()
            self.encoder = nn.Embedding(ntoken, ninp)
            self.pos_encoder = nn.Embedding(20, ninp)
            self.layers = nn.ModuleList(
                [nn.TransformerEncoderLayer(ninp, 4, 128, batch_first=True) for _ in range(2)]
            )
            self.decoder = nn.Linear(ninp, ntoken)
            for layer in self.layers:
                layer.self_attn.batch_first = True

        def generate_square_subsequent_mask(self, size):
            mask = (torch.triu(torch.ones(size, size)) == 1).transpose(0, 1)
            if broken:  # the mask that torch 1.3 produced
                mask = ~mask | torch.eye(size, dtype=torch.bool)
            return torch.zeros(size, size).masked_fill(~mask, float("-inf"))

        def forward(self, src):
            mask = self.generate_square_subsequent_mask(src.size(1))
            x = self.encoder(src) * math.sqrt(64) + self.pos_encoder.weight[: src.size(1)]
            for layer in self.layers:
                x = layer(x, src_mask=mask)
            return F.log_softmax(self.decoder(x), dim=-1)

    return TransformerModel()


class MultiHeadAttentionBlock(nn.Module):
    def __init__(self, d_model, h=4, dropout=0.1):
        super().__init__()
        self.h, self.d_k = h, d_model // h
        self.w_q, self.w_k, self.w_v, self.w_o = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask):
        query, key, value = (
            w(x).view(x.shape[0], x.shape[1], self.h, self.d_k).transpose(1, 2)
            for w, x in ((self.w_q, q), (self.w_k, k), (self.w_v, v))
        )
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        x = self.dropout(scores.softmax(dim=-1)) @ value
        return self.w_o(x.transpose(1, 2).contiguous().view(x.shape[0], -1, self.h * self.d_k))


class DecoderBlock(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.attention, self.norm1 = MultiHeadAttentionBlock(d_model), nn.LayerNorm(d_model)
        self.ff, self.norm2 = (
            nn.Sequential(nn.Linear(d_model, 128), nn.ReLU(), nn.Linear(128, d_model)),
            nn.LayerNorm(d_model),
        )

    def forward(self, x, mask):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, mask)
        return x + self.ff(self.norm2(x))


@bug("causal mask", "https://github.com/hkproj/pytorch-transformer/issues/19", FUTURE, ids(2, 12))
def hkproj_translate_mask(broken):
    class Decoder(nn.Module):
        def __init__(self, d_model=64):
            super().__init__()
            self.embedding, self.pos = nn.Embedding(50, d_model), nn.Embedding(12, d_model)
            self.layers = nn.ModuleList([DecoderBlock(d_model) for _ in range(3)])
            self.norm, self.proj = nn.LayerNorm(d_model), nn.Linear(d_model, 50)

        def forward(self, tgt):
            mask = torch.triu(torch.ones(1, tgt.size(1), tgt.size(1)), diagonal=1).int()
            if not broken:
                mask = mask == 0
            x = self.embedding(tgt) * 8 + self.pos.weight
            for layer in self.layers:
                x = layer(x, mask)
            return self.proj(self.norm(x))

    return Decoder()


@bug(
    "causal mask",
    "https://github.com/facebookresearch/xformers/issues/103",
    "error or warning: causal has no effect, positions see the future",
    stream(2, 12, 64),
    causal=True,
)
def xformers_causal_without_mask(broken, causal=True):
    class ScaledDotProduct(nn.Module):
        def __init__(self, causal):
            super().__init__()
            self.causal = causal

        def forward(self, q, k, v, att_mask=None):
            if att_mask is not None or (self.causal and not broken):
                allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
                if self.causal:
                    allowed = allowed.tril()
                if att_mask is not None:
                    allowed = allowed & att_mask
                att_mask = allowed
            return F.scaled_dot_product_attention(q, k, v, attn_mask=att_mask)

    class Block(nn.Module):
        def __init__(self, dim, causal):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.in_proj, self.out_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.attention = ScaledDotProduct(causal)
            self.mlp = nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim))

        def forward(self, x):
            q, k, v = (
                y.unflatten(-1, (4, -1)).transpose(1, 2)
                for y in self.in_proj(self.ln1(x)).chunk(3, -1)
            )
            x = x + self.out_proj(self.attention(q, k, v).transpose(1, 2).flatten(2))
            return x + self.mlp(self.ln2(x))

    return nn.Sequential(
        *[Block(64, causal) for _ in range(3)], nn.LayerNorm(64), nn.Linear(64, 50)
    )


@bug(
    "causal mask",
    "https://github.com/tatp22/linformer-pytorch/issues/16",
    "error: positions see the future through the projection of the sequence, "
    "although a causal mask is used",
    ids(2, 16),
)
def linformer_causal(broken):
    class LinearAttentionHead(nn.Module):
        def __init__(self, dim, n=16, k=8, heads=4):
            super().__init__()
            self.heads = heads
            self.to_q, self.to_k, self.to_v = (
                nn.Linear(dim, dim),
                nn.Linear(dim, dim),
                nn.Linear(dim, dim),
            )
            self.w_o = nn.Linear(dim, dim)
            if broken:
                self.E, self.F = nn.Linear(n, k), nn.Linear(n, k)
            mask = (
                (torch.triu(torch.ones(k, n)) == 1).transpose(0, 1)
                if broken
                else torch.ones(n, n).tril() == 1
            )
            self.register_buffer("mask", mask)

        def forward(self, x):
            q, k, v = (
                p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for p in (self.to_q, self.to_k, self.to_v)
            )
            if broken:
                k, v = (
                    self.E(k.transpose(2, 3)).transpose(2, 3),
                    self.F(v.transpose(2, 3)).transpose(2, 3),
                )
            p = (
                (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]))
                .masked_fill(~self.mask, float("-inf"))
                .softmax(-1)
            )
            return self.w_o((p @ v).transpose(1, 2).flatten(2))

    class Linformer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.emb, self.pos = nn.Embedding(50, dim), nn.Embedding(16, dim)
            self.attn = nn.ModuleList([LinearAttentionHead(dim) for _ in range(2)])
            self.ff = nn.ModuleList(
                [
                    nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim))
                    for _ in range(2)
                ]
            )
            self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(4)])
            self.head = nn.Linear(dim, 50)

        def forward(self, x):
            x = self.emb(x) + self.pos.weight
            for i in range(2):
                x = self.norms[2 * i](x + self.attn[i](x))
                x = self.norms[2 * i + 1](x + self.ff[i](x))
            return self.head(x)

    return Linformer()
