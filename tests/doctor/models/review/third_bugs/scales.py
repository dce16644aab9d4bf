"""Third batch: attention scales and softmaxes."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, stream
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PreLayer,
    SelfAttention,
    VisionModel,
    earlier,
    feed_forward,
    image,
    merge_heads,
    split_heads,
)

SCALE = "warning: the attention scores are scaled by the wrong factor, not by 1/sqrt(head dim)"
SOFTMAX = "error or warning: the softmax does not run over the keys"


@bug("scale", "https://github.com/omihub777/ViT-CIFAR/pull/12", SCALE, image())
def vit_cifar_sqrt_features(broken):
    class Attention(nn.Module):
        def __init__(self, feats=64, head=8):
            super().__init__()
            self.head, self.sqrt_d = head, (feats if broken else feats // head) ** 0.5
            self.q, self.k, self.v = (nn.Linear(feats, feats) for _ in range(3))
            self.o = nn.Linear(feats, feats)

        def forward(self, x):
            b, n, _ = x.size()
            q, k, v = (
                p(x).view(b, n, self.head, -1).transpose(1, 2) for p in (self.q, self.k, self.v)
            )
            score = F.softmax(torch.einsum("bhif, bhjf->bhij", q, k) / self.sqrt_d, dim=-1)
            attn = torch.einsum("bhij, bhjf->bihf", score, v)
            return self.o(attn.flatten(2))

    return VisionModel([PreLayer(Attention()) for _ in range(3)])


@bug("scale", "https://github.com/esceptico/perceiver-io/issues/9", SCALE, stream(2, 20, 48))
def perceiver_io_divides_by_inverse(broken):
    class Attention(nn.Module):
        def __init__(self, q_dim, kv_dim, heads=4, dim=64):
            super().__init__()
            self.heads, self.scale = heads, (dim // heads) ** -0.5
            self.q, self.k, self.v = (
                nn.Linear(q_dim, dim),
                nn.Linear(kv_dim, dim),
                nn.Linear(kv_dim, dim),
            )
            self.projection = nn.Linear(dim, q_dim)

        def forward(self, inputs_kv, inputs_q):
            q, k, v = (
                split_heads(p(y), self.heads)
                for p, y in ((self.q, inputs_q), (self.k, inputs_kv), (self.v, inputs_kv))
            )
            scores = q @ k.transpose(-2, -1)
            scores = scores / self.scale if broken else scores * self.scale
            return self.projection(merge_heads(scores.softmax(-1) @ v))

    class Block(nn.Module):
        def __init__(self, q_dim, kv_dim):
            super().__init__()
            self.q_norm, self.kv_norm = nn.LayerNorm(q_dim), nn.LayerNorm(kv_dim)
            self.attention, self.mlp_norm = Attention(q_dim, kv_dim), nn.LayerNorm(q_dim)
            self.mlp = feed_forward(q_dim)

        def forward(self, q, kv=None):
            normed = self.q_norm(q)
            q = q + self.attention(normed if kv is None else self.kv_norm(kv), normed)
            return q + self.mlp(self.mlp_norm(q))

    class Own(Block):
        def __init__(self, dim):
            super().__init__(dim, dim)
            self.kv_norm = None

    class Perceiver(nn.Module):
        def __init__(self):
            super().__init__()
            self.latents = nn.Parameter(torch.randn(8, 64))
            self.cross, self.layers = Block(64, 48), nn.ModuleList([Own(64) for _ in range(3)])
            self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 5)

        def forward(self, x):
            z = self.cross(self.latents.expand(len(x), -1, -1), x)
            for layer in self.layers:
                z = layer(z)
            return self.head(self.norm(z).mean(1))

    return Perceiver()


@bug("scale", "https://github.com/tenstorrent/tt-metal/pull/56789", SCALE, ids(2, 14))
def tt_metal_clip_sqrt_heads(broken):
    class MultiHeadAttention(nn.Module):
        def __init__(self, hidden=128, heads=4):
            super().__init__()
            self.heads = heads
            self.scale = 1.0 / math.sqrt(heads if broken else hidden // heads)
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
                nn.Linear(hidden, hidden) for _ in range(4)
            )

        def forward(self, x, visible=None):
            q, k, v = (
                split_heads(p(x), self.heads) for p in (self.q_proj, self.k_proj, self.v_proj)
            )
            scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
            scores = scores + torch.zeros_like(scores).masked_fill(~visible, -1e9)
            return self.out_proj(merge_heads(scores.softmax(-1) @ v))

    return LanguageModel(
        [PreLayer(MultiHeadAttention(), 128) for _ in range(3)], dim=128, causal=True
    )


@bug("scale", "https://github.com/huggingface/transformers/pull/38290", SCALE, ids(2, 14))
def opt_scaled_twice(broken):
    class OPTAttention(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, self.scaling = heads, (dim // heads) ** -0.5
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
                nn.Linear(dim, dim) for _ in range(4)
            )

        def forward(self, x, visible=None):
            q = split_heads(self.q_proj(x) * self.scaling, self.heads)
            k, v = split_heads(self.k_proj(x), self.heads), split_heads(self.v_proj(x), self.heads)
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=visible, scale=None if broken else 1.0
            )
            return self.out_proj(merge_heads(out))

    return LanguageModel([PreLayer(OPTAttention()) for _ in range(3)], causal=True)


@bug("scale", "https://github.com/FareedKhan-dev/train-llm-from-scratch/pull/3", SCALE, ids(2, 14))
def train_llm_head_scale(broken):
    class Head(nn.Module):
        def __init__(self, dim, size):
            super().__init__()
            self.key, self.query, self.value = (nn.Linear(dim, size, bias=False) for _ in range(3))

        def forward(self, x, visible):
            k, q = self.key(x), self.query(x)
            width = x.shape[-1] if broken else k.shape[-1]
            weights = q @ k.transpose(-2, -1) * width**-0.5
            return weights.masked_fill(~visible, float("-inf")).softmax(-1) @ self.value(x)

    class MultiHead(nn.Module):
        def __init__(self, dim=64, heads=8):
            super().__init__()
            self.heads = nn.ModuleList([Head(dim, dim // heads) for _ in range(heads)])
            self.proj = nn.Linear(dim, dim)

        def forward(self, x, visible=None):
            return self.proj(torch.cat([head(x, visible) for head in self.heads], -1))

    return LanguageModel([PreLayer(MultiHead()) for _ in range(3)], causal=True)


@bug("softmax axis", "https://github.com/Amshaker/SwiftFormer/issues/2", SOFTMAX, image())
def swiftformer_softmax_of_one(broken):
    class EfficientAdditiveAttention(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.to_query, self.to_key = nn.Linear(dim, dim), nn.Linear(dim, dim)
            self.w_g, self.scale_factor = nn.Parameter(torch.randn(dim, 1)), dim**-0.5
            self.proj, self.final = nn.Linear(dim, dim), nn.Linear(dim, dim)

        def forward(self, x):
            query = F.normalize(self.to_query(x), dim=-1)
            key = F.normalize(self.to_key(x), dim=-1)
            a = (query @ self.w_g) * self.scale_factor  # one number per token
            a = a.softmax(dim=-1 if broken else 1)
            g = torch.sum(a * query, dim=1, keepdim=True)
            return self.final(self.proj(g * key) + query)

    return VisionModel([PreLayer(EfficientAdditiveAttention()) for _ in range(3)])


@bug(
    "softmax axis",
    "https://github.com/nerminnuraydogan/vision-transformer/issues/1",
    SOFTMAX,
    image(),
)
def vision_notebook_softmax(broken):
    class Head(nn.Module):
        def __init__(self, dim=64, size=16):
            super().__init__()
            self.q, self.k, self.v, self.size = (*(nn.Linear(dim, size) for _ in range(3)), size)

        def forward(self, x):
            scores = torch.bmm(self.q(x), self.k(x).transpose(1, 2)) / math.sqrt(self.size)
            return torch.bmm(F.softmax(scores, dim=1 if broken else -1), self.v(x))

    class MultiHead(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads = nn.ModuleList([Head(dim, dim // heads) for _ in range(heads)])
            self.out = nn.Linear(dim, dim)

        def forward(self, x):
            return self.out(torch.cat([head(x) for head in self.heads], -1))

    return VisionModel([PreLayer(MultiHead()) for _ in range(3)])


@bug(
    "positions",
    "https://github.com/meta-pytorch/attention-gym/pull/86",
    "warning: the bias of ALiBi grows with the distance, so far tokens are preferred",
    ids(2, 14),
)
def attention_gym_alibi_sign(broken):
    def attend(q, k, v, visible=None):
        heads, length = q.size(1), q.size(2)
        distance = torch.arange(length)[:, None] - torch.arange(length)[None]
        slopes = torch.exp2(-(torch.arange(heads) + 1) * 8.0 / heads)[:, None, None]
        bias = slopes * (distance if broken else -distance)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + bias
        return scores.masked_fill(~earlier(length), float("-inf")).softmax(-1) @ v

    class Alibi(LanguageModel):
        def embed(self, ids):
            return self.tokens(ids)

    model = Alibi([PreLayer(SelfAttention(64, 4, attend)) for _ in range(3)], causal=True)
    del model.positions
    return model
