"""Norms and attention over the wrong axis, and wrong formulas of norms."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, stream

AXIS = (
    "warning: the norm computes its statistics over the sequence (or over sequence "
    "and features), not per token"
)


class Attention(nn.Module):
    """Self-attention of the tutorials: fused projection, explicit softmax."""

    def __init__(self, dim, heads=4, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads)
        if self.causal:
            future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


@bug(
    "norm axis",
    "https://github.com/jadore801120/attention-is-all-you-need-pytorch/pull/17",
    AXIS,
    ids(2, 12),
)
def jadore_layer_normalization(broken):
    class LayerNormalization(nn.Module):
        def __init__(self, d_hid, eps=1e-3):
            super().__init__()
            self.eps = eps
            self.a_2 = nn.Parameter(torch.ones(d_hid))
            self.b_2 = nn.Parameter(torch.zeros(d_hid))

        def forward(self, z):
            axis = 1 if broken else -1
            mu = torch.mean(z, dim=axis, keepdim=True)
            sigma = torch.std(z, dim=axis, keepdim=True)
            return (z - mu) / (sigma + self.eps) * self.a_2 + self.b_2

    class EncoderLayer(nn.Module):
        def __init__(self, d_model):
            super().__init__()
            self.slf_attn, self.norm1 = Attention(d_model), LayerNormalization(d_model)
            self.w_1 = nn.Conv1d(d_model, 128, 1)
            self.w_2 = nn.Conv1d(128, d_model, 1)
            self.norm2 = LayerNormalization(d_model)

        def forward(self, x):
            x = self.norm1(self.slf_attn(x) + x)
            output = self.w_2(F.relu(self.w_1(x.transpose(1, 2)))).transpose(1, 2)
            return self.norm2(output + x)

    class Encoder(nn.Module):
        def __init__(self, d_model=64):
            super().__init__()
            self.src_word_emb = nn.Embedding(50, d_model)
            self.position_enc = nn.Embedding(12, d_model)
            self.layer_stack = nn.ModuleList([EncoderLayer(d_model) for _ in range(3)])
            self.tgt_word_proj = nn.Linear(d_model, 50, bias=False)

        def forward(self, src_seq):
            x = self.src_word_emb(src_seq) + self.position_enc.weight
            for layer in self.layer_stack:
                x = layer(x)
            return self.tgt_word_proj(x)

    return Encoder()


@bug("norm axis", "https://github.com/bkitano/llama-from-scratch/issues/4", AXIS, ids(2, 16))
def llama_from_scratch_rms(broken):
    class RMSNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(dim))

        def forward(self, x):
            if broken:
                ff_rms = torch.linalg.norm(x, dim=(1, 2)) * x[0].numel() ** -0.5
                raw = x / ff_rms.unsqueeze(-1).unsqueeze(-1)
            else:
                raw = x / (
                    torch.linalg.norm(x, dim=-1, keepdim=True) / math.sqrt(x.shape[-1]) + 1e-6
                )
            return self.scale * raw

    class LlamaBlock(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.rms = RMSNorm(dim)
            self.rms2 = RMSNorm(dim)
            self.attention = Attention(dim, 4, causal=True)
            self.gate, self.up, self.down = (
                nn.Linear(dim, 96),
                nn.Linear(dim, 96),
                nn.Linear(96, dim),
            )

        def forward(self, x):
            x = x + self.attention(self.rms(x))
            y = self.rms2(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Llama(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embeddings = nn.Embedding(50, dim)
            self.positions = nn.Embedding(16, dim)
            self.blocks = nn.Sequential(*[LlamaBlock(dim) for _ in range(4)])
            self.norm = RMSNorm(dim)
            self.ffn = nn.Linear(dim, 50)

        def forward(self, idx):
            return self.ffn(self.norm(self.blocks(self.embeddings(idx) + self.positions.weight)))

    return Llama()


@bug(
    "norm axis",
    "https://github.com/Qualcomm-AI-research/geometric-algebra-transformer/pull/8",
    AXIS,
    stream(2, 12, 6),
)
def gatr_baseline_layer_norm(broken):
    class BaselineLayerNorm(nn.Module):
        def forward(self, inputs):
            return F.layer_norm(
                inputs, normalized_shape=inputs.shape[1:] if broken else inputs.shape[-1:]
            )

    class BaselineTransformerBlock(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.norm = BaselineLayerNorm()
            self.attention = Attention(channels)
            self.mlp = nn.Sequential(
                nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels)
            )

        def forward(self, inputs):
            outputs = inputs + self.attention(self.norm(inputs))
            return outputs + self.mlp(self.norm(outputs))

    class BaselineTransformer(nn.Module):
        def __init__(self, channels=64):
            super().__init__()
            self.linear_in = nn.Linear(6, channels)
            self.blocks = nn.ModuleList([BaselineTransformerBlock(channels) for _ in range(4)])
            self.norm = BaselineLayerNorm()
            self.linear_out = nn.Linear(channels, 3)

        def forward(self, inputs):
            x = self.linear_in(inputs)
            for block in self.blocks:
                x = block(x)
            return self.linear_out(self.norm(x))

    return BaselineTransformer()


@bug(
    "norm axis",
    "https://github.com/kyegomez/zeta/issues/180",
    AXIS + ", or its output is far from unit scale",
    ids(2, 16),
)
def zeta_rms_norm(broken):
    class RMSNorm(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.scale = dim**-0.5 if broken else dim**0.5
            self.g = nn.Parameter(torch.ones(dim))

        def forward(self, x):
            return F.normalize(x, dim=-2 if broken else -1) * self.scale * self.g

    class Transformer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.emb = nn.Embedding(50, dim)
            self.pos = nn.Embedding(16, dim)
            self.layers = nn.ModuleList(
                [
                    nn.ModuleList(
                        [
                            RMSNorm(dim),
                            Attention(dim, 4, True),
                            RMSNorm(dim),
                            nn.Sequential(nn.Linear(dim, 128), nn.GELU(), nn.Linear(128, dim)),
                        ]
                    )
                    for _ in range(3)
                ]
            )
            self.to_logits = nn.Sequential(RMSNorm(dim), nn.Linear(dim, 50))

        def forward(self, x):
            x = self.emb(x) + self.pos.weight
            for norm1, attn, norm2, ff in self.layers:
                x = attn(norm1(x)) + x
                x = ff(norm2(x)) + x
            return self.to_logits(x)

    return Transformer()


@bug(
    "norm axis",
    "https://github.com/reczoo/FuxiCTR/issues/23",
    AXIS,
    lambda: torch.randint(0, 100, (8, 10)),
)
def fuxictr_norm_over_fields(broken):
    class InteractingBlock(nn.Module):
        def __init__(self, fields, dim):
            super().__init__()
            self.attention = Attention(dim, 2)
            self.layer_norm = nn.LayerNorm([fields, dim] if broken else dim)

        def forward(self, x):
            return self.layer_norm(x + self.attention(x))

    class CTR(nn.Module):
        def __init__(self, fields=10, dim=32):
            super().__init__()
            self.embedding_layer = nn.Embedding(1000, dim)
            self.register_buffer("offsets", torch.arange(fields) * 100)
            self.blocks = nn.Sequential(*[InteractingBlock(fields, dim) for _ in range(3)])
            self.fc = nn.Linear(fields * dim, 1)

        def forward(self, x):
            return self.fc(self.blocks(self.embedding_layer(x + self.offsets)).flatten(1)).sigmoid()

    return CTR()
