"""Third batch: heads, tokens or examples that are mixed."""

import torch
from torch import nn

from tests.doctor.models.review.case import bug, ids
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PostLayer,
    PreLayer,
    VisionModel,
    earlier,
    feed_forward,
    image,
    softmax_attention,
    split_heads,
)

SCRAMBLED = "error or warning: heads are split or merged in the wrong order, so tokens mix"
BATCH = "error or warning: the examples of a batch mix"


@bug(
    "scrambled heads",
    "https://github.com/ajhalthor/Transformer-Neural-Network/pull/4",
    SCRAMBLED,
    ids(2, 12),
)
def ajhalthor_values_reshape(broken):
    class MultiHeadAttention(nn.Module):
        def __init__(self, d_model=64, heads=4):
            super().__init__()
            self.heads, self.d_model = heads, d_model
            self.qkv_layer, self.linear = (
                nn.Linear(d_model, 3 * d_model),
                nn.Linear(d_model, d_model),
            )

        def forward(self, x):
            b, n, _ = x.size()
            qkv = self.qkv_layer(x).reshape(b, n, self.heads, -1).permute(0, 2, 1, 3)
            values = softmax_attention(*qkv.chunk(3, dim=-1))
            values = values if broken else values.permute(0, 2, 1, 3)
            return self.linear(values.reshape(b, n, self.d_model))

    return LanguageModel([PostLayer(MultiHeadAttention()) for _ in range(3)], final_norm=False)


@bug(
    "scrambled heads",
    "https://github.com/gazelle93/Transformer-Various-Positional-Encoding/issues/1",
    BATCH + ", or heads are merged in the wrong order",
    ids(3, 12),
)
def gazelle_heads_before_batch(broken):
    class Attention(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, self.size = heads, dim // heads
            self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

        def forward(self, x):
            b = x.size(0)
            q, k, v = (
                p(x).view(b, -1, self.heads, self.size).permute(2, 0, 1, 3).flatten(0, 1)
                for p in (self.q, self.k, self.v)
            )
            out = softmax_attention(q, k, v).view(self.heads, b, -1, self.size)
            out = out.permute(0, 2, 1, 3) if broken else out.permute(1, 2, 0, 3)
            return self.o(out.contiguous().view(b, -1, self.heads * self.size))

    return LanguageModel([PostLayer(Attention()) for _ in range(3)], final_norm=False)


@bug(
    "scrambled heads",
    "https://github.com/rish-16/tokenlearner-pytorch/issues/1",
    SCRAMBLED,
    image(),
)
def tokenlearner_view_for_transpose(broken):
    class Mixing(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.mhsa = nn.MultiheadAttention(dim, 4)  # tokens first

        def forward(self, x):
            b, n, c = x.shape
            y = x.reshape(n, b, c) if broken else x.transpose(0, 1)
            y, _ = self.mhsa(y, y, y)
            return y.reshape(b, n, c) if broken else y.transpose(0, 1)

    return VisionModel([PreLayer(Mixing()) for _ in range(3)])


@bug("scrambled heads", "https://github.com/meta-pytorch/opacus/pull/825", SCRAMBLED, ids(2, 12))
def opacus_batch_first_view(broken):
    class Attention(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, self.dim = heads, dim
            self.qlinear, self.klinear, self.vlinear, self.out_proj = (
                nn.Linear(dim, dim) for _ in range(4)
            )

        def forward(self, x, visible=None):
            b, n, _ = x.shape
            q, k, v = (
                split_heads(p(x), self.heads).flatten(0, 1)
                for p in (self.qlinear, self.klinear, self.vlinear)
            )
            out = softmax_attention(q, k, v)
            if not broken:
                out = out.view(b, self.heads, n, -1).transpose(1, 2).contiguous()
            return self.out_proj(out.view(b, n, self.dim))

    return LanguageModel([PreLayer(Attention()) for _ in range(3)])


@bug(
    "attention axis",
    "https://github.com/aipixel/AEMatter/issues/3",
    BATCH + " (and so do the windows)",
    image(16),
)
def aematter_window_axis(broken):
    class WindowAttention(nn.Module):
        def __init__(self, dim=32, width=4):
            super().__init__()
            self.width, self.norm1, self.norm2 = width, nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.attention = nn.MultiheadAttention(dim, 4, batch_first=not broken)
            self.mlp = feed_forward(dim, 64)

        def forward(self, x):  # (batch, height, width, channels)
            b, h, w, c = x.shape
            stripes = self.norm1(x).view(b, h // self.width, self.width * w, c).flatten(0, 1)
            stripes = self.attention(stripes, stripes, stripes)[0].reshape(b, h, w, c)
            x = x + stripes
            return x + self.mlp(self.norm2(x))

    class Matting(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 32, 3, padding=1)
            self.blocks = nn.ModuleList([WindowAttention() for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 1)

        def forward(self, picture):
            x = self.stem(picture).permute(0, 2, 3, 1)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).permute(0, 3, 1, 2)

    return Matting()


@bug(
    "scrambled heads",
    "https://github.com/MarcoMeter/episodic-transformer-memory-ppo/pull/22",
    "warning: the features are split into heads before one projection that all heads share",
    ids(2, 12),
)
def episodic_memory_shared_projection(broken):
    class Attention(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, width = heads, dim // heads if broken else dim
            self.values, self.keys, self.queries = (
                nn.Linear(width, width, bias=False) for _ in range(3)
            )
            self.fc_out = nn.Linear(dim, dim)

        def project(self, layer, x):
            if broken:
                return layer(x.view(*x.shape[:2], self.heads, -1))
            return layer(x).view(*x.shape[:2], self.heads, -1)

        def forward(self, x, visible=None):
            q, k, v = (self.project(p, x) for p in (self.queries, self.keys, self.values))
            energy = torch.einsum("nqhd,nkhd->nhqk", q, k) / q.size(-1) ** 0.5
            energy = energy.masked_fill(~earlier(x.size(1)), float("-1e20"))
            out = torch.einsum("nhql,nlhd->nqhd", energy.softmax(-1), v)
            return self.fc_out(out.reshape(x.shape))

    return LanguageModel([PreLayer(Attention()) for _ in range(3)], causal=True)
