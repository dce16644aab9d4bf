"""Epsilons that vanish in half precision."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids

SMALL = (
    "warning: epsilon is zero in float16 (smallest positive number 6e-8), so "
    "constant rows divide by zero"
)


class SelfAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (
            nn.Linear(dim, dim),
            nn.Linear(dim, dim),
            nn.Linear(dim, dim),
        )
        self.dense = nn.Linear(dim, dim)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).softmax(-1)
        return self.dense((weights @ v).permute(0, 2, 1, 3).flatten(2))


class Bert(nn.Module):
    """Post-LN encoder in the style of pytorch-pretrained-BERT, with a given norm."""

    def __init__(self, norm, dim=64, layers=3):
        super().__init__()
        self.word_embeddings = nn.Embedding(50, dim, padding_idx=0)
        self.position_embeddings = nn.Embedding(16, dim)
        self.embedding_norm = norm(dim)
        self.attention = nn.ModuleList([SelfAttention(dim) for _ in range(layers)])
        self.attention_norm = nn.ModuleList([norm(dim) for _ in range(layers)])
        self.intermediate = nn.ModuleList([nn.Linear(dim, 4 * dim) for _ in range(layers)])
        self.output = nn.ModuleList([nn.Linear(4 * dim, dim) for _ in range(layers)])
        self.output_norm = nn.ModuleList([norm(dim) for _ in range(layers)])
        self.decoder = nn.Linear(dim, 50)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                module.weight.data.normal_(0.0, 0.02)

    def forward(self, input_ids):
        x = self.word_embeddings(input_ids) + self.position_embeddings.weight[: input_ids.size(1)]
        x = self.embedding_norm(x)
        for i, attention in enumerate(self.attention):
            x = self.attention_norm[i](attention(x) + x)
            x = self.output_norm[i](self.output[i](F.gelu(self.intermediate[i](x))) + x)
        return self.decoder(x)


@bug("epsilon", "https://github.com/pytorch/pytorch/issues/41527", SMALL, ids(2, 12))
def bert_half_1e_12(broken):
    return Bert(lambda dim: nn.LayerNorm(dim, eps=1e-12 if broken else 1e-5)).half()


@bug("epsilon", "https://github.com/tensorflow/tensorflow/pull/24979", SMALL, ids(2, 12))
def moments_half_1e_12(broken):
    class LayerNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.gamma, self.beta = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
            self.variance_epsilon = 1e-12 if broken else 1e-3

        def forward(self, x):
            u = x.mean(-1, keepdim=True)
            s = (x - u).pow(2).mean(-1, keepdim=True)
            return self.gamma * ((x - u) / torch.sqrt(s + self.variance_epsilon)) + self.beta

    return Bert(LayerNorm).half()


@bug("epsilon", "https://github.com/huggingface/diffusers/pull/13316", SMALL, ids(2, 12))
def normalize_half(broken):
    class RMSNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.scale, self.gamma = dim**0.5, nn.Parameter(torch.ones(dim))

        def forward(self, x):
            y = F.normalize(x, dim=-1) if broken else F.normalize(x.float(), dim=-1).to(x.dtype)
            return y * self.scale * self.gamma

    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.norm1, self.attn = RMSNorm(dim), SelfAttention(dim)
            self.norm2, self.ff = (
                RMSNorm(dim),
                nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim)),
            )

        def forward(self, x):
            x = x + self.attn(self.norm1(x))
            return x + self.ff(self.norm2(x))

    class Positions(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, dim))

        def forward(self, x):
            return x + self.weight

    embedding = nn.Sequential(nn.Embedding(50, 64), Positions(64))
    return nn.Sequential(
        embedding, Block(64), Block(64), Block(64), RMSNorm(64), nn.Linear(64, 50)
    ).half()


@bug(
    "epsilon",
    "https://github.com/bkitano/llama-from-scratch/issues/4 (second comment, eps=1e-8, in half)",
    SMALL,
    ids(2, 12),
)
def rms_half_1e_8(broken):
    class RMSNorm(nn.Module):
        def __init__(self, dim, eps=1e-8):
            super().__init__()
            self.scale, self.eps = nn.Parameter(torch.ones(dim)), eps

        def forward(self, x):
            if broken:
                return (
                    x * torch.rsqrt(torch.mean(x**2, dim=-1, keepdim=True) + self.eps) * self.scale
                )
            y = x.float()
            return (y * torch.rsqrt(torch.mean(y**2, dim=-1, keepdim=True) + self.eps)).to(
                x.dtype
            ) * self.scale

    return Bert(RMSNorm).half()
