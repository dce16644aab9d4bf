"""Scales without their initialization, and initializations that destroy a norm or a branch."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads=4, bias=False):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=bias) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        return self.wo(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


@bug(
    "scale without initialization",
    "https://github.com/facebookresearch/xformers/pull/284",
    "warning: the skip is scaled as in DeepNorm, but the value projection is not "
    "initialized with beta",
    ids(),
)
def xformers_deepnorm_value(broken):
    layers = 6
    alpha, beta = (2 * layers) ** 0.25, (8 * layers) ** -0.25

    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.in_proj, self.out_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
            self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            for linear in (self.out_proj, self.fc1, self.fc2):
                nn.init.xavier_normal_(linear.weight, gain=beta)
            with torch.no_grad():
                for i, gain in enumerate((1, 1, 1 if broken else beta)):
                    nn.init.xavier_normal_(self.in_proj.weight[i * dim : (i + 1) * dim], gain=gain)

        def forward(self, x):
            q, k, v = (
                t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.in_proj(x).chunk(3, -1)
            )
            x = self.ln1(
                alpha * x
                + self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            )
            return self.ln2(alpha * x + self.fc2(F.gelu(self.fc1(x))))

    class Model(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.emb, self.pos = nn.Embedding(50, dim), nn.Embedding(12, dim)
            self.blocks = nn.ModuleList([Block(dim) for _ in range(layers)])
            self.head = nn.Linear(dim, 50)

        def forward(self, idx):
            x = self.emb(idx) + self.pos.weight
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Model()


@bug(
    "scale without initialization",
    "https://github.com/karpathy/llama2.c/issues/579",
    "warning: the scaled initialization is on w3, which is not a residual projection; w2 misses it",
    ids(),
)
def llama2_c_w3(broken):
    class RMSNorm(nn.Module):
        def __init__(self, dim, eps=1e-5):
            super().__init__()
            self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight

    class TransformerBlock(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.attention_norm, self.attention, self.ffn_norm = (
                RMSNorm(dim),
                CausalSelfAttention(dim),
                RMSNorm(dim),
            )
            self.w1, self.w2, self.w3 = (
                nn.Linear(dim, 160, bias=False),
                nn.Linear(160, dim, bias=False),
                nn.Linear(dim, 160, bias=False),
            )

        def forward(self, x):
            h = x + self.attention(self.attention_norm(x))
            y = self.ffn_norm(h)
            return h + self.w2(F.silu(self.w1(y)) * self.w3(y))

    class Transformer(nn.Module):
        def __init__(self, dim=64, n_layers=6):
            super().__init__()
            self.tok_embeddings, self.pos = nn.Embedding(50, dim), nn.Embedding(12, dim)
            self.layers = nn.ModuleList([TransformerBlock(dim) for _ in range(n_layers)])
            self.norm, self.output = RMSNorm(dim), nn.Linear(dim, 50, bias=False)
            self.output.weight = self.tok_embeddings.weight
            for module in self.modules():
                if isinstance(module, (nn.Linear, nn.Embedding)):
                    nn.init.normal_(module.weight, std=0.02)
            for name, p in self.named_parameters():
                if name.endswith("w3.weight" if broken else "w2.weight") or name.endswith(
                    "wo.weight"
                ):
                    nn.init.normal_(p, mean=0.0, std=0.02 / math.sqrt(2 * n_layers))

        def forward(self, tokens):
            h = self.tok_embeddings(tokens) + self.pos.weight
            for layer in self.layers:
                h = layer(h)
            return self.output(self.norm(h))

    return Transformer()


class VitBlock(nn.Module):
    def __init__(self, dim, layer_scale):
        super().__init__()
        self.norm1, self.attn, self.ls1 = (
            nn.LayerNorm(dim, eps=1e-6),
            nn.MultiheadAttention(dim, 4, batch_first=True),
            layer_scale(dim),
        )
        self.norm2, self.mlp = (
            nn.LayerNorm(dim, eps=1e-6),
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)),
        )
        self.ls2 = layer_scale(dim)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.ls1(self.attn(y, y, y, need_weights=False)[0])
        return x + self.ls2(self.mlp(self.norm2(x)))


@bug(
    "scale without initialization",
    "https://github.com/huggingface/pytorch-image-models/pull/2605",
    "warning: LayerScale starts at 1, init_values has no effect",
    lambda: torch.randn(2, 3, 32, 32),
    depth=4,
    init_values=1e-5,
)
def timm_layer_scale_ones(broken, depth=4, init_values=1e-5):
    class LayerScale(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.init_values, self.gamma = init_values, nn.Parameter(torch.empty(dim))
            self.reset_parameters()

        def reset_parameters(self):
            nn.init.constant_(self.gamma, 1.0 if broken else self.init_values)

        def forward(self, x):
            return x * self.gamma

    class VisionTransformer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.patch_embed = nn.Conv2d(3, dim, 8, 8)
            self.cls_token, self.pos_embed = (
                nn.Parameter(torch.zeros(1, 1, dim)),
                nn.Parameter(torch.randn(1, 17, dim) * 0.02),
            )
            self.blocks = nn.Sequential(*[VitBlock(dim, LayerScale) for _ in range(depth)])
            self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, 10)

        def forward(self, x):
            x = self.patch_embed(x).flatten(2).transpose(1, 2)
            x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), 1) + self.pos_embed
            return self.head(self.norm(self.blocks(x))[:, 0])

    return VisionTransformer()


@bug(
    "scale without initialization",
    "https://github.com/SWivid/F5-TTS/issues/793",
    "warning: the gates of adaLN-Zero do not start at zero",
    lambda: (torch.randn(2, 16, 32), torch.rand(2)),
)
def f5_tts_ada_ln_zero(broken):
    class DiTBlock(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.linear = nn.Linear(dim, dim * 6)
            self.norm1, self.norm2 = (
                nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6) for _ in range(2)
            )
            self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
            self.ff = nn.Sequential(
                nn.Linear(dim, 2 * dim), nn.GELU(approximate="tanh"), nn.Linear(2 * dim, dim)
            )

        def forward(self, x, t):
            shift1, scale1, gate1, shift2, scale2, gate2 = self.linear(F.silu(t))[:, None].chunk(
                6, -1
            )
            y = self.norm1(x) * (1 + scale1) + shift1
            x = x + gate1 * self.attn(y, y, y, need_weights=False)[0]
            return x + gate2 * self.ff(self.norm2(x) * (1 + scale2) + shift2)

    class DiT(nn.Module):
        def __init__(self, dim=64, depth=4):
            super().__init__()
            self.time_embed = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
            self.proj, self.pos = nn.Linear(32, dim), nn.Parameter(torch.randn(16, dim) * 0.02)
            self.transformer_blocks = nn.ModuleList([DiTBlock(dim) for _ in range(depth)])
            self.norm_out, self.ada_out = (
                nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6),
                nn.Linear(dim, dim * 2),
            )
            self.proj_out = nn.Linear(dim, 32)
            if not broken:
                for block in self.transformer_blocks:
                    nn.init.zeros_(block.linear.weight)
                    nn.init.zeros_(block.linear.bias)
                nn.init.zeros_(self.ada_out.weight)
                nn.init.zeros_(self.ada_out.bias)
                nn.init.zeros_(self.proj_out.weight)
                nn.init.zeros_(self.proj_out.bias)

        def forward(self, x, time):
            angles = time[:, None] * 1000 * torch.exp(-math.log(10000) * torch.arange(32) / 31)
            t = self.time_embed(torch.cat((angles.sin(), angles.cos()), -1))
            x = self.proj(x) + self.pos
            for block in self.transformer_blocks:
                x = block(x, t)
            scale, shift = self.ada_out(F.silu(t))[:, None].chunk(2, -1)
            return self.proj_out(self.norm_out(x) * (1 + scale) + shift)

    return DiT()
