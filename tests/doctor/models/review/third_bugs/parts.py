"""Third batch: options and weights without effect, sharing, dropout, and residual connections."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, stream
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PostLayer,
    PreLayer,
    SelfAttention,
    VisionModel,
    feed_forward,
    image,
    merge_heads,
    softmax_attention,
    split_heads,
)

OPTION = "warning: the option has no effect"
UNUSED = "error or warning: weights have no effect on the output"


@bug(
    "option",
    "https://github.com/nntile/nntile/pull/378",
    OPTION,
    ids(2, 12),
    hidden_act="relu",
    layers=3,
)
def nntile_hidden_act(broken, hidden_act="relu", layers=3):
    activations = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}

    def layer():
        made = PostLayer(SelfAttention())
        made.mlp[1] = nn.GELU("tanh") if broken else activations[hidden_act]()
        return made

    return LanguageModel([layer() for _ in range(layers)], final_norm=False)


@bug(
    "option",
    "https://github.com/kornia/kornia/issues/2186",
    "warning: num_heads does not split the attention, there is always one head",
    image(),
    num_heads=4,
)
def kornia_single_head(broken, num_heads=4):
    class MultiHeadAttention(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.head_size = dim // num_heads
            self.scale = self.head_size**-0.5
            self.qkv, self.projection = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            if broken:
                return self.projection((q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v)
            q, k, v = (split_heads(t, num_heads) for t in (q, k, v))
            return self.projection(merge_heads(softmax_attention(q, k, v)))

    return VisionModel([PreLayer(MultiHeadAttention()) for _ in range(3)])


@bug(
    "unused weights",
    "https://github.com/yflyzhang/AnnotatedTransformer/issues/1",
    "error or warning: the value projection is never used, the key projection is used twice",
    ids(2, 12),
)
def annotated_key_projection_for_values(broken):
    class MultiHeadedAttention(SelfAttention):
        def forward(self, x, visible=None):
            value = self.k_proj if broken else self.v_proj
            q, k, v = (split_heads(p(x), self.heads) for p in (self.q_proj, self.k_proj, value))
            return self.o_proj(merge_heads(softmax_attention(q, k, v, visible=visible)))

    return LanguageModel([PreLayer(MultiHeadedAttention()) for _ in range(3)], causal=True)


@bug(
    "unused weights", "https://github.com/huggingface/transformers/issues/30633", UNUSED, image(16)
)
def dpt_unused_fusion_residual(broken):
    class PreActivation(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.conv1, self.conv2 = (
                nn.Conv2d(dim, dim, 3, padding=1),
                nn.Conv2d(dim, dim, 3, padding=1),
            )

        def forward(self, x):
            return x + self.conv2(F.relu(self.conv1(F.relu(x))))

    class Fusion(nn.Module):
        def __init__(self, dim, first=False):
            super().__init__()
            if broken or not first:
                self.residual_layer1 = PreActivation(dim)
            self.residual_layer2, self.projection = PreActivation(dim), nn.Conv2d(dim, dim, 1)

        def forward(self, x, skip=None):
            if skip is not None:
                x = x + self.residual_layer1(skip)
            return self.projection(self.residual_layer2(x))

    class Neck(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stages = nn.ModuleList(
                [nn.Conv2d(3 if i == 0 else dim, dim, 3, padding=1) for i in range(4)]
            )
            self.layers = nn.ModuleList([Fusion(dim, i == 0) for i in range(4)])
            self.head = nn.Conv2d(dim, 1, 3, padding=1)

        def forward(self, x):
            features = []
            for stage in self.stages:
                x = F.relu(stage(x))
                features.append(x)
            fused = None
            for layer, feature in zip(self.layers, reversed(features), strict=True):
                fused = layer(feature) if fused is None else layer(fused, feature)
            return self.head(fused)

    return Neck()


@bug(
    "unused weights",
    "https://github.com/lucidrains/imagen-pytorch/issues/75",
    "error or warning: the time is not passed to the last block, its time_mlp has no effect",
    lambda: (torch.randn(2, 3, 16, 16), torch.rand(2, 32)),
)
def imagen_final_block_time(broken):
    class ResnetBlock(nn.Module):
        def __init__(self, dim, time_dim=32):
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(8, dim), nn.GroupNorm(8, dim)
            self.conv1, self.conv2 = (
                nn.Conv2d(dim, dim, 3, padding=1),
                nn.Conv2d(dim, dim, 3, padding=1),
            )
            self.time_mlp = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, 2 * dim))

        def forward(self, x, t=None):
            h = self.conv1(F.silu(self.norm1(x)))
            h = self.norm2(h)
            if t is not None:
                scale, shift = self.time_mlp(t)[:, :, None, None].chunk(2, 1)
                h = h * (scale + 1) + shift
            return x + self.conv2(F.silu(h))

    class Unet(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stem, self.blocks = (
                nn.Conv2d(3, dim, 3, padding=1),
                nn.ModuleList([ResnetBlock(dim) for _ in range(3)]),
            )
            self.final_res_block = ResnetBlock(dim)
            self.norm, self.out = nn.GroupNorm(8, dim), nn.Conv2d(dim, 3, 3, padding=1)

        def forward(self, x, t):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x, t)
            x = self.final_res_block(x) if broken else self.final_res_block(x, t)
            return self.out(F.silu(self.norm(x)))

    return Unet()


@bug(
    "shared layers",
    "https://github.com/acids-ircam/ddsp_pytorch/issues/37",
    "warning: the two input networks are one module ([mlp] * 2)",
    lambda: (torch.randn(2, 20, 1), torch.randn(2, 20, 1)),
)
def ddsp_shared_input_networks(broken):
    def mlp(inputs, hidden):
        parts = []
        for i in range(3):
            parts += [
                nn.Linear(inputs if i == 0 else hidden, hidden),
                nn.LayerNorm(hidden),
                nn.LeakyReLU(),
            ]
        return nn.Sequential(*parts)

    class Synth(nn.Module):
        def __init__(self, hidden=32):
            super().__init__()
            made = [mlp(1, hidden)] * 2 if broken else [mlp(1, hidden) for _ in range(2)]
            self.in_mlps, self.gru = (
                nn.ModuleList(made),
                nn.GRU(2 * hidden, hidden, batch_first=True),
            )
            self.out_mlp, self.proj = mlp(hidden + 2, hidden), nn.Linear(hidden, 8)

        def forward(self, pitch, loudness):
            hidden = torch.cat([self.in_mlps[0](pitch), self.in_mlps[1](loudness)], -1)
            hidden = torch.cat([self.gru(hidden)[0], pitch, loudness], -1)
            return self.proj(self.out_mlp(hidden))

    return Synth()


@bug(
    "dropout",
    "https://github.com/facebookresearch/DME/issues/3",
    "error or warning: dropout is active in eval mode",
    ids(2, 12),
)
def dme_embedding_dropout(broken):
    class Encoder(LanguageModel):
        def embed(self, ids):
            out = super().embed(ids)
            return (
                F.dropout(out, p=0.2) if broken else F.dropout(out, p=0.2, training=self.training)
            )

    return Encoder([PostLayer(SelfAttention()) for _ in range(2)], final_norm=False)


@bug(
    "dropout",
    "https://github.com/hyunwoongko/transformer/issues/8",
    "warning: dropout acts on the normalized sum (the stream), not on the branch",
    ids(2, 12),
)
def hyunwoongko_dropout_after_norm(broken):
    class EncoderLayer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.attention, self.ffn = SelfAttention(dim), feed_forward(dim)
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.dropout1, self.dropout2 = nn.Dropout(0.1), nn.Dropout(0.1)

        def forward(self, x):
            if broken:
                x = self.dropout1(self.norm1(self.attention(x) + x))
                return self.dropout2(self.norm2(self.ffn(x) + x))
            x = self.norm1(self.dropout1(self.attention(x)) + x)
            return self.norm2(self.dropout2(self.ffn(x)) + x)

    return LanguageModel([EncoderLayer() for _ in range(3)], final_norm=False)


@bug(
    "activation",
    "https://github.com/bold-lab-ai/JaxMARL/issues/126",
    "warning: two dense layers follow each other without an activation",
    image(16),
)
def jaxmarl_dense_layers(broken):
    between = [] if broken else [nn.ReLU()]
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 64),
        *between,
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 6),
    )


@bug(
    "layers without effect",
    "https://github.com/simon-ging/coot-videotext/issues/5",
    "error or warning: every layer reads the input, only the last one has an effect",
    stream(2, 12, 64),
)
def coot_last_layer_only(broken):
    class Layer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.attention = nn.MultiheadAttention(dim, 4, batch_first=True)
            self.norm1, self.norm2, self.ff = (
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
                feed_forward(dim),
            )

        def forward(self, query, key, value):
            x = self.norm1(query + self.attention(query, key, value)[0])
            return self.norm2(x + self.ff(x))

    class Coot(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.encoder_layers = nn.ModuleList([Layer(dim) for _ in range(3)])
            self.pool = nn.Linear(dim, 16)

        def forward(self, x):
            sources = x
            for layer in self.encoder_layers:
                sources = layer(x, x, x) if broken else layer(sources, sources, sources)
            return self.pool(sources.mean(1))

    return Coot()


@bug(
    "wrong residual",
    "https://github.com/yunzeliu/MAP/issues/3",
    "warning or error: the input of a block is added once more, though the block adds it itself",
    image(),
)
def map_doubled_residual(broken):
    class Doubled(PreLayer):
        def forward(self, x):
            y = super().forward(x)
            return y + x if broken else y

    return VisionModel([Doubled(SelfAttention()) for _ in range(4)])
