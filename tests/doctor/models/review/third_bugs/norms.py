"""Third batch: norms that are doubled, misplaced or shared, or without a safe epsilon."""

import torch
from torch import nn

from tests.doctor.models.review.case import bug, ids, stream
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PreLayer,
    SelfAttention,
    VisionModel,
    feed_forward,
    image,
    merge_heads,
    softmax_attention,
    split_heads,
)

SKIP = "warning or error: the skip connection carries the normalized input"


@bug(
    "norm on the skip",
    "https://github.com/Howuhh/faster-trajectory-transformer/issues/3",
    SKIP,
    ids(2, 12),
)
def trajectory_pre_norm(broken):
    class Block(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norm1, self.norm2, self.drop = (
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
                nn.Dropout(0.1),
            )
            self.attention, self.mlp = SelfAttention(dim), feed_forward(dim)

        def forward(self, x, visible=None):
            normed = self.norm1(x)
            attended = self.drop(self.attention(normed, visible=visible))
            x = attended + (normed if broken else x)
            return x + self.mlp(self.norm2(x))

    return LanguageModel([Block() for _ in range(4)], causal=True)


@bug(
    "norm placement",
    "https://github.com/NVIDIA-NeMo/Speech/pull/4350",
    "warning: the norm after the attention is not on the stream, so Post-LN and Pre-LN are mixed",
    ids(2, 12),
)
def nemo_post_ln_residual(broken):
    class Layer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.attention, self.mlp = SelfAttention(dim), feed_forward(dim)

        def forward(self, x):
            layernorm_input = x + self.attention(x)
            normalized = self.norm1(layernorm_input)
            residual = layernorm_input if broken else normalized
            return self.norm2(residual + self.mlp(normalized))

    return LanguageModel([Layer() for _ in range(4)], final_norm=False)


class CrossAttention(nn.Module):
    """Attention of a stream to another."""

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads, self.q, self.kv = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.o = nn.Linear(dim, dim)

    def forward(self, x, context):
        q = split_heads(self.q(x), self.heads)
        k, v = (split_heads(t, self.heads) for t in self.kv(context).chunk(2, -1))
        return self.o(merge_heads(softmax_attention(q, k, v)))


@bug(
    "shared norm",
    "https://github.com/lucidrains/alphafold2/pull/36",
    "warning: one norm is used for both inputs, the norm of the context is never called",
    lambda: (torch.randn(2, 10, 64), torch.randn(2, 8, 64)),
)
def alphafold2_cross_norm(broken):
    class PreNormCross(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.fn, self.norm, self.norm_context = (
                CrossAttention(dim),
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
            )

        def forward(self, x, context):
            x = self.norm(x)
            context = (self.norm if broken else self.norm_context)(context)
            return self.fn(x, context)

    class Trunk(nn.Module):
        def __init__(self, dim=64, depth=3):
            super().__init__()
            self.own = nn.ModuleList([PreLayer(SelfAttention(dim)) for _ in range(depth)])
            self.cross = nn.ModuleList([PreNormCross(dim) for _ in range(depth)])
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 5)

        def forward(self, x, context):
            for own, cross in zip(self.own, self.cross, strict=True):
                x = own(x)
                x = x + cross(x, context)
            return self.head(self.norm(x))

    return Trunk()


@bug(
    "doubled norm",
    "https://github.com/chenxin-dlut/TransT/issues/13",
    "warning: a second norm follows the norm that ends the last Post-LN layer",
    lambda: (torch.randn(2, 9, 64), torch.randn(2, 16, 64)),
)
def transt_decoder_norm(broken):
    class Fusion(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.template, self.search = CrossAttention(dim), CrossAttention(dim)
            self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(4)])
            self.mlp1, self.mlp2 = feed_forward(dim), feed_forward(dim)

        def forward(self, z, x):
            new_z, new_x = self.template(z, x), self.search(x, z)
            z, x = self.norms[0](z + new_z), self.norms[1](x + new_x)
            return self.norms[2](z + self.mlp1(z)), self.norms[3](x + self.mlp2(x))

    class Tracker(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.layers = nn.ModuleList([Fusion(dim) for _ in range(2)])
            self.cross, self.norm1, self.norm2 = (
                CrossAttention(dim),
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
            )
            self.mlp = feed_forward(dim)
            self.decoder_norm = nn.LayerNorm(dim) if broken else nn.Identity()
            self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))

        def forward(self, z, x):
            for layer in self.layers:
                z, x = layer(z, x)
            x = self.norm1(x + self.cross(x, z))
            x = self.norm2(x + self.mlp(x))
            return self.head(self.decoder_norm(x))

    return Tracker()


class RootMeanSquare(nn.Module):
    """RMSNorm as in LLaMA."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


@bug(
    "doubled norm",
    "https://github.com/ggml-org/llama.cpp/pull/1925",
    "warning: the input of a branch is normalized twice in a row",
    ids(2, 12),
)
def llama_cpp_rms_norm_twice(broken):
    def rms_norm(x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    class Layer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.attention_norm, self.ffn_norm = RootMeanSquare(dim), RootMeanSquare(dim)
            self.attention, self.mlp = SelfAttention(dim), feed_forward(dim)

        def forward(self, x, visible=None):
            y = self.attention_norm(rms_norm(x)) if broken else self.attention_norm(x)
            x = x + self.attention(y, visible=visible)
            return x + self.mlp(self.ffn_norm(x))

    model = LanguageModel([Layer() for _ in range(3)], causal=True)
    model.norm = RootMeanSquare(64)
    return model


@bug(
    "shared norm",
    "https://github.com/huggingface/diffusers/pull/13533",
    "warning: the norm of the text's queries is used for its keys, too, and norm_added_k never",
    lambda: (torch.randn(2, 16, 64), torch.randn(2, 6, 64)),
)
def auraflow_added_key_norm(broken):
    class JointAttention(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, size = heads, dim // heads
            self.qkv, self.added = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim)
            self.norm_q, self.norm_k, self.norm_added_q, self.norm_added_k = (
                nn.LayerNorm(size) for _ in range(4)
            )
            self.out, self.out_added = nn.Linear(dim, dim), nn.Linear(dim, dim)

        def forward(self, x, c):
            q, k, v = (split_heads(t, self.heads) for t in self.qkv(x).chunk(3, -1))
            cq, ck, cv = (split_heads(t, self.heads) for t in self.added(c).chunk(3, -1))
            q, k, cq = self.norm_q(q), self.norm_k(k), self.norm_added_q(cq)
            ck = (self.norm_added_q if broken else self.norm_added_k)(ck)
            joined = (torch.cat(pair, 2) for pair in ((cq, q), (ck, k), (cv, v)))
            out = merge_heads(softmax_attention(*joined))
            return self.out(out[:, c.size(1) :]), self.out_added(out[:, : c.size(1)])

    class Block(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.attention = JointAttention(dim)
            self.norm1, self.norm2, self.norm1_c, self.norm2_c = (
                nn.LayerNorm(dim) for _ in range(4)
            )
            self.mlp, self.mlp_c = feed_forward(dim), feed_forward(dim)

        def forward(self, x, c):
            y, d = self.attention(self.norm1(x), self.norm1_c(c))
            x, c = x + y, c + d
            return x + self.mlp(self.norm2(x)), c + self.mlp_c(self.norm2_c(c))

    class Flow(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.blocks = nn.ModuleList([Block(dim) for _ in range(3)])
            self.norm, self.norm_c, self.head = (
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
                nn.Linear(dim, 8),
            )

        def forward(self, x, c):
            for block in self.blocks:
                x, c = block(x, c)
            return self.head(torch.cat([self.norm_c(c), self.norm(x)], 1))

    return Flow()


@bug(
    "epsilon",
    "https://github.com/pyg-team/pytorch_geometric/pull/2917",
    "warning: the epsilon stands behind the root, so constant features give NaN gradients",
    stream(2, 12, 64),
)
def geometric_layer_norm_root(broken):
    class LayerNorm(nn.Module):
        def __init__(self, dim=64, eps=1e-5):
            super().__init__()
            self.eps, self.weight, self.bias = (
                eps,
                nn.Parameter(torch.ones(dim)),
                nn.Parameter(torch.zeros(dim)),
            )

        def forward(self, x):
            x = x - x.mean(-1, keepdim=True)
            var = (x * x).mean(-1, keepdim=True)
            out = x / (var.sqrt() + self.eps) if broken else x / (var + self.eps).sqrt()
            return out * self.weight + self.bias

    layers = [PreLayer(SelfAttention()) for _ in range(3)]
    for layer in layers:
        layer.norm1, layer.norm2 = LayerNorm(), LayerNorm()
    return nn.Sequential(*layers, LayerNorm(), nn.Linear(64, 5))


@bug(
    "epsilon",
    "https://github.com/VeriSilicon/TIM-VX/pull/589",
    "warning: the epsilon of the norms is zero",
    image(),
)
def tim_vx_epsilon_zero(broken):
    class LayerNorm(nn.Module):
        def __init__(self, dim=64, eps=1e-5):
            super().__init__()
            self.eps = int(eps) if broken else eps
            self.gamma, self.beta = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

        def forward(self, x):
            mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
            return (x - mean) / torch.sqrt(var + self.eps) * self.gamma + self.beta

    model = VisionModel([PreLayer(SelfAttention()) for _ in range(3)])
    for layer in model.layers:
        layer.norm1, layer.norm2 = LayerNorm(), LayerNorm()
    model.norm = LayerNorm()
    return model
