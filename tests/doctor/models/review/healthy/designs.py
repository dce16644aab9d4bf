"""Healthy designs that look like one of the bugs."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import healthy, ids, stream


def attend(x, qkv, out, heads=4, mask=None, causal=False, scale=None):
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in qkv(x).chunk(3, -1))
    return out(
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
        .transpose(1, 2)
        .flatten(2)
    )


def feed_forward(dim):
    return nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))


class Block(nn.Module):
    """Pre-LN block with exchangeable parts."""

    def __init__(self, dim=64, norm=nn.LayerNorm, causal=False, gain=None, scale=None):
        super().__init__()
        self.norm1, self.norm2, self.causal, self.scale = norm(dim), norm(dim), causal, scale
        self.qkv, self.out, self.ff = (
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
            feed_forward(dim),
        )
        self.gain = nn.Parameter(torch.full((dim,), gain)) if gain is not None else 1.0

    def forward(self, x, mask=None):
        x = x + self.gain * attend(
            self.norm1(x), self.qkv, self.out, mask=mask, causal=self.causal, scale=self.scale
        )
        return x + self.gain * self.ff(self.norm2(x))


class Model(nn.Module):
    def __init__(self, blocks, dim=64, norm=nn.LayerNorm, length=12):
        super().__init__()
        self.emb, self.pos = nn.Embedding(50, dim, padding_idx=0), nn.Embedding(length, dim)
        self.blocks, self.norm, self.head = nn.ModuleList(blocks), norm(dim), nn.Linear(dim, 50)

    def mask(self, idx):
        return None

    def forward(self, idx):
        x, mask = self.emb(idx) + self.pos.weight[: idx.size(1)], self.mask(idx)
        for block in self.blocks:
            x = block(x) if mask is None else block(x, mask)
        return self.head(self.norm(x))


@healthy(ids())
def layer_scale_small():
    return Model([Block(gain=1e-4) for _ in range(4)])


@healthy(ids())
def rezero():
    class ReZero(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.qkv, self.out, self.ff = (
                nn.Linear(dim, 3 * dim),
                nn.Linear(dim, dim),
                feed_forward(dim),
            )
            self.alpha = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            x = x + self.alpha * attend(x, self.qkv, self.out)
            return x + self.alpha * self.ff(x)

    model = Model([ReZero() for _ in range(4)])
    model.norm = nn.Identity()
    return model


@healthy(ids())
def mup_attention_scale():
    return Model([Block(scale=1 / 16, causal=True) for _ in range(3)])


@healthy(ids())
def parallel_shared_norm():
    class Parallel(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norm, self.qkv, self.out, self.ff = (
                nn.LayerNorm(dim),
                nn.Linear(dim, 3 * dim),
                nn.Linear(dim, dim),
                feed_forward(dim),
            )

        def forward(self, x):
            y = self.norm(x)
            return x + attend(y, self.qkv, self.out, causal=True) + self.ff(y)

    return Model([Parallel() for _ in range(3)])


@healthy(ids())
def albert_sharing():
    block = Block()
    return Model([block] * 4)


@healthy(stream(2, 20, 40))
def conformer():
    class Conv(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.norm, self.a, self.c = (
                nn.LayerNorm(dim),
                nn.Conv1d(dim, 2 * dim, 1),
                nn.Conv1d(dim, dim, 1),
            )
            self.b, self.batch_norm = (
                nn.Conv1d(dim, dim, 5, padding=2, groups=dim),
                nn.BatchNorm1d(dim),
            )

        def forward(self, x):
            y = F.glu(self.a(self.norm(x).transpose(1, 2)), 1)
            return self.c(F.silu(self.batch_norm(self.b(y)))).transpose(1, 2)

    class ConformerBlock(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.ff1, self.ff2 = (
                nn.Sequential(nn.LayerNorm(dim), feed_forward(dim)) for _ in range(2)
            )
            self.norm, self.qkv, self.out = (
                nn.LayerNorm(dim),
                nn.Linear(dim, 3 * dim),
                nn.Linear(dim, dim),
            )
            self.conv, self.norm_out = Conv(dim), nn.LayerNorm(dim)

        def forward(self, x):
            x = x + 0.5 * self.ff1(x)
            x = x + attend(self.norm(x), self.qkv, self.out)
            x = x + self.conv(x)
            return self.norm_out(x + 0.5 * self.ff2(x))

    return nn.Sequential(
        nn.Linear(40, 64), *[ConformerBlock() for _ in range(3)], nn.Linear(64, 30)
    )


@healthy(stream(2, 16, 64))
def mlp_mixer():
    class Mixer(nn.Module):
        def __init__(self, dim=64, tokens=16):
            super().__init__()
            self.norm1, self.norm2, self.channel = (
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
                feed_forward(dim),
            )
            self.token = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))

        def forward(self, x):
            x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channel(self.norm2(x))

    return nn.Sequential(*[Mixer() for _ in range(4)], nn.LayerNorm(64), nn.Linear(64, 10))


@healthy(lambda: torch.randn(2, 6, 10, 32))
def axial_attention():
    class Axial(nn.Module):
        """Attention over rows, then over columns."""

        def __init__(self, dim=32):
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(3)])
            self.qkv = nn.ModuleList([nn.Linear(dim, 3 * dim) for _ in range(2)])
            self.out, self.ff = (
                nn.ModuleList([nn.Linear(dim, dim) for _ in range(2)]),
                feed_forward(dim),
            )

        def forward(self, x):
            for axis in range(2):
                y = self.norms[axis](x) if axis == 0 else self.norms[axis](x).transpose(1, 2)
                b, i, j, c = y.shape
                y = attend(y.reshape(b * i, j, c), self.qkv[axis], self.out[axis]).view(b, i, j, c)
                x = x + (y if axis == 0 else y.transpose(1, 2))
            return x + self.ff(self.norms[2](x))

    return nn.Sequential(*[Axial() for _ in range(3)], nn.LayerNorm(32), nn.Linear(32, 8))


@healthy(ids())
def deepnorm():
    depth = 6
    alpha, beta = (2 * depth) ** 0.25, (8 * depth) ** -0.25

    class DeepNorm(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))
            self.fc1, self.fc2, self.norm1, self.norm2 = (
                nn.Linear(dim, 256),
                nn.Linear(256, dim),
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
            )
            for linear, gain in (
                (self.q, 1),
                (self.k, 1),
                (self.v, beta),
                (self.out, beta),
                (self.fc1, beta),
                (self.fc2, beta),
            ):
                nn.init.xavier_normal_(linear.weight, gain=gain)

        def forward(self, x):
            q, k, v = (
                p(x).unflatten(-1, (4, -1)).transpose(1, 2) for p in (self.q, self.k, self.v)
            )
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = self.norm1(alpha * x + self.out(y))
            return self.norm2(alpha * x + self.fc2(F.relu(self.fc1(x))))

    model = Model([DeepNorm() for _ in range(depth)])
    model.norm = nn.Identity()
    return model


@healthy(ids())
def half_precision_with_float_norms():
    class FloatNorm(nn.LayerNorm):
        def forward(self, x):
            return F.layer_norm(
                x.float(), self.normalized_shape, self.weight.float(), self.bias.float(), 1e-6
            ).to(x.dtype)

    return Model([Block(norm=FloatNorm) for _ in range(3)], norm=FloatNorm).half()


@healthy(ids())
def bfloat16_small_eps():
    class Norm(nn.LayerNorm):
        def __init__(self, dim):
            super().__init__(dim, eps=1e-12)

    return Model([Block(norm=Norm) for _ in range(3)], norm=Norm).bfloat16()


@healthy(ids())
def gpt2_scaled_initialization():
    model = Model([Block(causal=True) for _ in range(4)])
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            residual = name.endswith(("out.weight", "ff.2.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(8) if residual else 0.02)
    return model


@healthy(stream(2, 12, 64))
def two_stacks_one_reader():
    """A Pre-LN encoder with a final norm, then a second one of another width."""
    first = nn.Sequential(*[Block(64) for _ in range(2)], nn.LayerNorm(64))
    second = nn.Sequential(
        nn.Linear(64, 48), *[Block(48) for _ in range(2)], nn.LayerNorm(48), nn.Linear(48, 10)
    )
    return nn.Sequential(first, second)


@healthy(lambda: (torch.randn(2, 10, 64), torch.randn(2, 4, 64)))
def perceiver_cross_attention():
    class Perceiver(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norm_q, self.norm_kv, self.cross = (
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
                nn.MultiheadAttention(dim, 4, batch_first=True),
            )
            self.norm_ff, self.ff = nn.LayerNorm(dim), feed_forward(dim)
            self.blocks, self.norm, self.head = (
                nn.ModuleList([Block(dim) for _ in range(2)]),
                nn.LayerNorm(dim),
                nn.Linear(dim, 8),
            )

        def forward(self, data, latents):
            kv = self.norm_kv(data)
            x = latents + self.cross(self.norm_q(latents), kv, kv, need_weights=False)[0]
            x = x + self.ff(self.norm_ff(x))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Perceiver()
