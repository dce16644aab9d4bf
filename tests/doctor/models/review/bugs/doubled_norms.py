"""Norms doubled at the end, between stacks or on the skip path."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, stream

DOUBLED = (
    "warning: two norms follow each other, the second (final) norm of a Post-LN stack is redundant"
)


@bug(
    "doubled norm",
    "https://github.com/pytorch/pytorch/issues/24930",
    DOUBLED,
    lambda: (torch.randn(2, 10, 64), torch.randn(2, 8, 64)),
)
def torch_transformer_default(broken):
    if broken:
        return nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(64, 4, 128, batch_first=True), 2)
    return nn.Transformer(64, 4, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)


class DetrEncoderLayer(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, src, pos):
        q = k = src + pos
        src2 = self.self_attn(q, k, value=src)[0]
        src = self.norm1(src + self.dropout1(src2))
        src2 = self.linear2(self.dropout(F.relu(self.linear1(src))))
        return self.norm2(src + self.dropout2(src2))


@bug(
    "doubled norm",
    "https://github.com/Atten4Vis/ConditionalDETR/issues/11",
    DOUBLED,
    lambda: torch.randn(2, 3, 32, 32),
)
def detr_encoder_ends_with_two_norms(broken):
    class Detr(nn.Module):
        def __init__(self, d_model=64):
            super().__init__()
            self.input_proj = nn.Conv2d(3, d_model, 8, 8)
            self.pos = nn.Parameter(torch.rand(16, 1, d_model))
            self.layers = nn.ModuleList([DetrEncoderLayer(d_model, 4, 128) for _ in range(3)])
            self.norm = nn.LayerNorm(d_model) if broken else None
            self.class_embed = nn.Linear(d_model, 11)

        def forward(self, image):
            output = self.input_proj(image).flatten(2).permute(2, 0, 1)
            for layer in self.layers:
                output = layer(output, self.pos)
            if self.norm is not None:
                output = self.norm(output)
            return self.class_embed(output.mean(0))

    return Detr()


class PreNormLayer(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.layer_norm = nn.LayerNorm(dim, eps=1e-6)
        self.ff_norm = nn.LayerNorm(dim, eps=1e-6)
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim)
        )

    def forward(self, inputs):
        input_norm = self.layer_norm(inputs)
        out = self.self_attn(input_norm, input_norm, input_norm, need_weights=False)[0] + inputs
        return self.feed_forward(self.ff_norm(out)) + out


@bug(
    "doubled norm",
    "https://github.com/Helsinki-NLP/mammoth/pull/3",
    "warning: the stream is normed at the end of the first stack and again at the "
    "start of the second one",
    ids(),
)
def mammoth_layer_stacks(broken):
    class LayerStack(nn.Module):
        def __init__(self, dim, layers, is_last):
            super().__init__()
            self.transformer = nn.ModuleList([PreNormLayer(dim) for _ in range(layers)])
            self.layer_norm = nn.LayerNorm(dim, eps=1e-6) if is_last or broken else None

        def forward(self, x):
            for layer in self.transformer:
                x = layer(x)
            return x if self.layer_norm is None else self.layer_norm(x)

    class Encoder(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.embeddings = nn.Embedding(50, dim)
            self.position = nn.Embedding(32, dim)
            self.encoder = nn.ModuleList([LayerStack(dim, 2, False), LayerStack(dim, 2, True)])
            self.generator = nn.Linear(dim, 50)

        def forward(self, src):
            x = self.embeddings(src) + self.position.weight[: src.size(1)]
            for stack in self.encoder:
                x = stack(x)
            return self.generator(x)

    return Encoder()


@bug("doubled norm", "https://github.com/k2-fsa/snowfall/pull/184", DOUBLED, stream(2, 20, 40))
def snowfall_conformer_norm_final(broken):
    class ConvolutionModule(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.pointwise_conv1 = nn.Conv1d(dim, 2 * dim, 1)
            self.depthwise_conv = nn.Conv1d(dim, dim, 7, padding=3, groups=dim)
            self.norm = nn.BatchNorm1d(dim)
            self.pointwise_conv2 = nn.Conv1d(dim, dim, 1)

        def forward(self, x):
            x = F.glu(self.pointwise_conv1(x.transpose(1, 2)), dim=1)
            return self.pointwise_conv2(F.silu(self.norm(self.depthwise_conv(x)))).transpose(1, 2)

    class ConformerEncoderLayer(nn.Module):
        def __init__(self, dim, normalize_before=False):
            super().__init__()
            self.normalize_before = normalize_before
            self.feed_forward_macaron = nn.Sequential(
                nn.Linear(dim, 128), nn.SiLU(), nn.Linear(128, dim)
            )
            self.self_attn = nn.MultiheadAttention(dim, 4, batch_first=True)
            self.conv_module = ConvolutionModule(dim)
            self.feed_forward = nn.Sequential(nn.Linear(dim, 128), nn.SiLU(), nn.Linear(128, dim))
            self.norm_ff_macaron = nn.LayerNorm(dim)
            self.norm_mha = nn.LayerNorm(dim)
            self.norm_conv = nn.LayerNorm(dim)
            self.norm_ff = nn.LayerNorm(dim)
            self.norm_final = nn.LayerNorm(dim)

        def forward(self, src):
            src = self.norm_ff_macaron(src + 0.5 * self.feed_forward_macaron(src))
            src = self.norm_mha(src + self.self_attn(src, src, src, need_weights=False)[0])
            src = self.norm_conv(src + self.conv_module(src))
            src = self.norm_ff(src + 0.5 * self.feed_forward(src))
            if self.normalize_before or broken:
                src = self.norm_final(src)
            return src

    class Conformer(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.encoder_embed = nn.Linear(40, dim)
            self.encoder = nn.ModuleList([ConformerEncoderLayer(dim) for _ in range(2)])
            if not broken:
                for layer in self.encoder:
                    del layer.norm_final
            self.encoder_output_layer = nn.Linear(dim, 30)

        def forward(self, x):
            x = self.encoder_embed(x)
            for layer in self.encoder:
                x = layer(x)
            return self.encoder_output_layer(x)

    return Conformer()


@bug(
    "doubled norm", "https://github.com/Hoper-J/AI-Guide-and-Demos-zh_CN/issues/20", DOUBLED, ids()
)
def annotated_post_norm_encoder_norm(broken):
    class LayerNorm(nn.Module):
        def __init__(self, features, eps=1e-6):
            super().__init__()
            self.gamma, self.beta, self.eps = (
                nn.Parameter(torch.ones(features)),
                nn.Parameter(torch.zeros(features)),
                eps,
            )

        def forward(self, x):
            return (
                self.gamma * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps)
                + self.beta
            )

    class SublayerConnection(nn.Module):
        def __init__(self, dim, dropout=0.1):
            super().__init__()
            self.norm, self.dropout = LayerNorm(dim), nn.Dropout(dropout)

        def forward(self, x, sublayer):
            return self.norm(x + self.dropout(sublayer(x)))

    class EncoderLayer(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.self_attn = nn.MultiheadAttention(dim, 4, batch_first=True)
            self.feed_forward = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))
            self.sublayer = nn.ModuleList([SublayerConnection(dim) for _ in range(2)])

        def forward(self, x):
            x = self.sublayer[0](x, lambda y: self.self_attn(y, y, y)[0])
            return self.sublayer[1](x, self.feed_forward)

    class Encoder(nn.Module):
        def __init__(self, dim=48):
            super().__init__()
            self.embed = nn.Embedding(50, dim)
            self.pos = nn.Embedding(12, dim)
            self.layers = nn.ModuleList([EncoderLayer(dim) for _ in range(3)])
            self.norm = LayerNorm(dim) if broken else nn.Identity()
            self.generator = nn.Linear(dim, 50)

        def forward(self, src):
            x = self.embed(src) * 48**0.5 + self.pos.weight
            for layer in self.layers:
                x = layer(x)
            return self.generator(self.norm(x))

    return Encoder()
