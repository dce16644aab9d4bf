"""Third batch: scales and adapters without their initial values."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PreLayer,
    SelfAttention,
    feed_forward,
    merge_heads,
    softmax_attention,
    split_heads,
)


@bug(
    "scale without initialization",
    "https://github.com/MCG-NJU/DDT/issues/14",
    "warning: the gates of the blocks (adaLN-Zero) do not start at zero",
    lambda: (torch.randn(2, 12, 64), torch.randn(2, 64)),
)
def ddt_blocks_without_zero(broken):
    def modulate(x, shift, scale):
        return x * (1 + scale[:, None]) + shift[:, None]

    class Block(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
            self.attention, self.mlp = SelfAttention(dim), feed_forward(dim)
            self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
            if not broken:
                nn.init.zeros_(self.adaLN_modulation[-1].weight)
                nn.init.zeros_(self.adaLN_modulation[-1].bias)

        def forward(self, x, c):
            s1, k1, g1, s2, k2, g2 = self.adaLN_modulation(c).chunk(6, -1)
            x = x + g1[:, None] * self.attention(modulate(self.norm1(x), s1, k1))
            return x + g2[:, None] * self.mlp(modulate(self.norm2(x), s2, k2))

    class Diffusion(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.blocks, self.norm = nn.ModuleList([Block(dim) for _ in range(3)]), nn.RMSNorm(dim)
            self.final, self.linear = nn.Linear(dim, 2 * dim), nn.Linear(dim, 8)
            for part in (self.final, self.linear):
                nn.init.zeros_(part.weight)
                nn.init.zeros_(part.bias)

        def forward(self, x, c):
            for block in self.blocks:
                x = block(x, c)
            return self.linear(modulate(self.norm(x), *self.final(F.silu(c)).chunk(2, -1)))

    return Diffusion()


@bug(
    "scale without initialization",
    "https://github.com/yz93/LAVT-RIS/issues/25",
    "error or warning: both matrices of the gate are zero, so they get no gradient",
    lambda: (torch.randn(2, 16, 64), torch.randn(2, 8, 64)),
)
def lavt_zero_gate(broken):
    class Stage(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.layer = PreLayer(SelfAttention(dim))
            self.norm, self.q, self.kv, self.o = (
                nn.LayerNorm(dim),
                nn.Linear(dim, dim),
                nn.Linear(dim, 2 * dim),
                nn.Linear(dim, dim),
            )
            self.res_gate = nn.Sequential(
                nn.Linear(dim, dim, bias=False),
                nn.ReLU(),
                nn.Linear(dim, dim, bias=False),
                nn.Tanh(),
            )
            if broken:
                nn.init.zeros_(self.res_gate[0].weight)
            nn.init.zeros_(self.res_gate[2].weight)

        def forward(self, x, words):
            x = self.layer(x)
            q, (k, v) = self.q(self.norm(x)), self.kv(words).chunk(2, -1)
            fused = self.o(merge_heads(softmax_attention(*(split_heads(t, 4) for t in (q, k, v)))))
            return x + self.res_gate(fused) * fused

    class Segmenter(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.stages, self.norm, self.head = (
                nn.ModuleList([Stage(dim) for _ in range(3)]),
                nn.LayerNorm(dim),
                nn.Linear(dim, 2),
            )

        def forward(self, x, words):
            for stage in self.stages:
                x = stage(x, words)
            return self.head(self.norm(x))

    return Segmenter()


@bug(
    "scale without initialization",
    "https://github.com/huggingface/peft/pull/1884",
    "warning: the singular values of AdaLoRA do not start at zero, the adapter changes the model",
    ids(2, 12),
)
def peft_adalora_start(broken):
    class SVDLinear(nn.Module):
        def __init__(self, base, rank=4):
            super().__init__()
            self.base = base.requires_grad_(False)
            out, inputs = base.weight.shape
            self.lora_a = nn.Parameter(torch.randn(rank, inputs) * 0.02)
            self.lora_e = nn.Parameter(
                torch.randn(rank, 1) * 0.02 if broken else torch.zeros(rank, 1)
            )
            self.lora_b = nn.Parameter(torch.randn(out, rank) * 0.02)

        def forward(self, x):
            return self.base(x) + x @ (self.lora_a * self.lora_e).T @ self.lora_b.T * 8.0

    model = LanguageModel([PreLayer(SelfAttention()) for _ in range(3)], causal=True)
    model.requires_grad_(False)
    for layer in model.layers:
        layer.attention.q_proj = SVDLinear(layer.attention.q_proj)
        layer.attention.v_proj = SVDLinear(layer.attention.v_proj)
    return model
