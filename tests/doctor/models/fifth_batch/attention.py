"""Scores without their scale, scrambled heads and axes, positions, and initialization."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .masks import PreNormWith
from .norms import VisionBlock, VisionTransformer
from .parts import (
    DIM,
    HEADS,
    VOCAB,
    Case,
    Decoder,
    Embed,
    Encoder,
    FeedForward,
    PostBlock,
    PreBlock,
    RMSNorm,
    features,
    ids,
    initialize,
    merge_heads,
    split_heads,
    text,
)

# -- https://github.com/mlc-ai/mlc-llm/pull/3426


class FallbackAttention(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.sm_scale = (DIM // HEADS) ** -0.5 if fixed else 1.0
        self.query, self.key, self.value, self.dense = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in (self.query(x), self.key(x), self.value(x)))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.sm_scale
        scores = scores + (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e4
        return self.dense(merge_heads(scores.softmax(-1) @ v))


# -- https://github.com/omihub777/ViT-CIFAR/pull/11


class CifarAttention(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.sqrt_d = (DIM // HEADS if fixed else DIM) ** 0.5
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in (self.q(x), self.k(x), self.v(x)))
        score = F.softmax(torch.einsum("bhif,bhjf->bhij", q, k) / self.sqrt_d, dim=-1)
        return self.o(torch.einsum("bhij,bhjf->bihf", score, v).flatten(2))


# -- https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/10


class TextAttention(nn.Module):
    """Heads are moved into the batch by a view."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.fc_Q, self.fc_K, self.fc_V, self.fc = (nn.Linear(DIM, DIM) for _ in range(4))
        self.layer_norm = nn.LayerNorm(DIM)

    def heads(self, x: Tensor) -> Tensor:
        size = DIM // HEADS
        if self.fixed:
            return x.view(len(x), -1, HEADS, size).transpose(1, 2).reshape(len(x) * HEADS, -1, size)
        return x.view(len(x) * HEADS, -1, size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(self.fc_Q(x)), self.heads(self.fc_K(x)), self.heads(self.fc_V(x))
        context = ((q @ k.permute(0, 2, 1)) * k.shape[-1] ** -0.5).softmax(-1) @ v
        if self.fixed:
            context = context.view(len(x), HEADS, -1, DIM // HEADS).transpose(1, 2).flatten(2)
        else:
            context = context.view(len(x), -1, DIM)
        return self.layer_norm(self.fc(context) + x)


class TextBlock(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.attention, self.ffn, self.norm = TextAttention(fixed), FeedForward(), nn.LayerNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        return self.norm(x + self.ffn(x))


class TextClassifier(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.embedding = Embed()
        self.encoders = nn.ModuleList([TextBlock(fixed) for _ in range(2)])
        self.fc1 = nn.Linear(DIM * 12, 4)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for encoder in self.encoders:
            x = encoder(x)
        return self.fc1(x.flatten(1))


# -- https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/171


class VideoAttention(nn.Module):
    """Spatial attention of each frame of a video (batch, channels, time, height, width)."""

    def __init__(self, channels: int, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.norm = nn.GroupNorm(4, channels)
        self.q, self.k, self.v, self.proj_out = (nn.Conv3d(channels, channels, 1) for _ in range(4))

    def frames(self, x: Tensor) -> Tensor:
        b, c, t, h, w = x.shape
        if self.fixed:
            x = x.permute(0, 2, 1, 3, 4)
        return x.reshape(b * t, c, h * w)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        b, c, t, h, w = x.shape
        q, k, v = self.frames(self.q(y)), self.frames(self.k(y)), self.frames(self.v(y))
        weights = torch.softmax(q.transpose(1, 2) @ k * c**-0.5, dim=2)
        y = v @ weights.transpose(1, 2)
        y = (
            y.reshape(b, t, c, h, w).permute(0, 2, 1, 3, 4)
            if self.fixed
            else y.reshape(b, c, t, h, w)
        )
        return x + self.proj_out(y)


class VideoEncoder(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.conv_in = nn.Conv3d(3, 16, 3, padding=1)
        self.attn_1, self.attn_2 = VideoAttention(16, fixed), VideoAttention(16, fixed)
        self.norm_out, self.conv_out = nn.GroupNorm(4, 16), nn.Conv3d(16, 8, 1)

    def forward(self, video: Tensor) -> Tensor:
        x = self.attn_2(self.attn_1(self.conv_in(video)))
        return self.conv_out(F.silu(self.norm_out(x)))


# -- https://github.com/leaderj1001/Attention-Augmented-Conv2d/issues/21


class AugmentedConv(nn.Module):
    """Convolution beside self-attention over the pixels; both are concatenated."""

    def __init__(self, fixed: bool, channels: int = 16, values: int = 8, heads: int = 2):
        super().__init__()
        self.fixed, self.heads, self.values = fixed, heads, values
        self.conv_out = nn.Conv2d(channels, channels - values, 3, padding=1)
        self.qkv_conv, self.attn_out = (
            nn.Conv2d(channels, 3 * values, 1),
            nn.Conv2d(values, values, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q, k, v = (p.reshape(b, self.heads, -1, h * w).mT for p in self.qkv_conv(x).chunk(3, 1))
        y = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v  # (batch, heads, pixels, values)
        if self.fixed:
            y = y.permute(0, 1, 3, 2)
        y = y.reshape(b, self.values, h, w)
        return torch.cat([self.conv_out(x), self.attn_out(y)], 1)


class AugmentedNet(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.augmented = nn.ModuleList([AugmentedConv(fixed) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(2)])
        self.fc = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for conv, norm in zip(self.augmented, self.norms, strict=True):
            x = x + F.relu(norm(conv(x)))
        return self.fc(x.mean((2, 3)))


# -- https://github.com/zju3dv/LoFTR/issues/41


def sine_positions(fixed: bool, dim: int = DIM, tokens: int = 64) -> Tensor:
    steps = torch.arange(tokens, dtype=torch.float32)[:, None]
    index = torch.arange(0, dim, 2).float()
    # Without the parentheses the floor division turns the factor into -1.
    factor = -math.log(10000.0) / (dim // 2) if fixed else -math.log(10000.0) / dim // 2
    angles = steps * torch.exp(index * factor)
    table = torch.zeros(tokens, dim)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


class Matcher(nn.Module):
    """Image features with fixed positions; two images attend to each other."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.backbone = nn.Conv2d(1, DIM, 4, 4)
        self.register_buffer("pe", sine_positions(fixed))
        self.layers = nn.ModuleList([PostBlock() for _ in range(2)])

    def forward(self, image0: Tensor, image1: Tensor) -> Tensor:
        sides = []
        for image in (image0, image1):
            x = self.backbone(image).flatten(2).mT
            x = x + self.pe[: x.shape[1]]
            for layer in self.layers:
                x = layer(x)
            sides.append(x)
        return sides[0] @ sides[1].mT / DIM**0.5


# -- https://github.com/vukrosic/leo-optimizer/pull/2


class Rotary(nn.Module):
    """Rotates (batch, tokens, heads, size); the positions are those of axis -3."""

    def __init__(self, size: int, tokens: int = 64):
        super().__init__()
        angles = torch.outer(
            torch.arange(tokens).float(), 10000 ** (-torch.arange(0, size, 2) / size)
        )
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[None, : x.shape[-3], None], self.sin[None, : x.shape[-3], None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos + b * sin, b * cos - a * sin], -1)


class RotaryAttention(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.qkv, self.w_o = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.rotary = Rotary(DIM // HEADS)

    def rotate(self, x: Tensor) -> Tensor:
        return self.rotary(x.transpose(1, 2)).transpose(1, 2) if self.fixed else self.rotary(x)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (split_heads(p) for p in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return self.w_o(merge_heads(y))


class RotaryModel(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.token_embedding = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList([PreNormWith(RotaryAttention(fixed)) for _ in range(2)])
        self.norm, self.lm_head = RMSNorm(), nn.Linear(DIM, VOCAB, bias=False)
        initialize(self)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.token_embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


# -- https://github.com/huggingface/torchMoji/issues/11


class EmojiModel(nn.Module):
    """Attention pooling whose vector is allocated and never initialized."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.embed, self.norm = Embed(), nn.LayerNorm(DIM)
        self.blocks = nn.ModuleList([PreBlock() for _ in range(2)])
        vector = torch.empty(DIM, 1)
        if fixed:
            nn.init.uniform_(vector, -0.05, 0.05)
        else:
            # What uninitialized memory held in the report: values up to 1e38.
            vector.copy_(torch.logspace(-30, 30, DIM)[:, None])
        self.attention_vector = nn.Parameter(vector)
        self.output = nn.Linear(DIM, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x, attention_mask)
        x = self.norm(x)
        logits = (x @ self.attention_vector).squeeze(-1)
        weights = (logits - logits.max()).exp() * attention_mask
        weights = weights / weights.sum(1, keepdim=True)
        return self.output((x * weights[..., None]).sum(1))


# -- https://github.com/clankur/einygpt/pull/3


class EinsumAttention(nn.Module):
    """One tensor holds the projections of all heads; its scale must be that of its inputs."""

    def __init__(self, fixed: bool, heads: int = 8):
        super().__init__()
        size = DIM // heads
        self.kvq = nn.Parameter(torch.randn(3, DIM, heads, size) * (DIM if fixed else size) ** -0.5)
        self.out = nn.Parameter(torch.randn(heads, size, DIM) * DIM**-0.5)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        k, v, q = torch.einsum("btd,sdhf->sbhtf", x, self.kvq)
        scores = torch.einsum("bhqf,bhkf->bhqk", q, k) / q.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return torch.einsum("bhqk,bhkf,hfd->bqd", weights, v, self.out)


# -- https://github.com/pytorch-tpu/transformers/pull/26


def deferred(fixed: bool) -> nn.Module:
    model = Decoder(*(PreBlock(causal=True) for _ in range(2)))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            if fixed:
                nn.init.uniform_(parameter, -0.02, 0.02)
            else:
                parameter.data = torch.randn_like(parameter)
    return model


# -- https://github.com/huggingface/transformers/pull/26441


class TextToText(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.shared, self.final_layer_norm = nn.Embedding(2000, 256), RMSNorm(256)
        self.block = nn.ModuleList([PreBlock(256, 8, causal=True) for _ in range(2)])
        self.lm_head = nn.Linear(256, 2000, bias=False)
        nn.init.normal_(self.lm_head.weight, std=256**-0.5 if fixed else 1.0)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.shared(input_ids)
        for block in self.block:
            x = block(x)
        return self.lm_head(self.final_layer_norm(x))


def images() -> Tensor:
    return features(3, 3, 16, 16)


CASES = [
    Case(
        "mlc_unscaled_scores",
        "attention without 1/sqrt(d)",
        "https://github.com/mlc-ai/mlc-llm/pull/3426",
        "the attention scores lack 1/sqrt(head size)",
        lambda fixed: Encoder(*(PreNormWith(FallbackAttention(fixed)) for _ in range(2))),
        text,
    ),
    Case(
        "vit_cifar_model_width_scale",
        "attention without 1/sqrt(d)",
        "https://github.com/omihub777/ViT-CIFAR/pull/11",
        "the attention scores are divided by sqrt(width) instead of sqrt(head size)",
        lambda fixed: VisionTransformer(
            [VisionBlock(DIM, CifarAttention(fixed)) for _ in range(2)]
        ),
        images,
    ),
    Case(
        "chinese_text_heads",
        "head reshape",
        "https://github.com/649453932/Chinese-Text-Classification-Pytorch/issues/10",
        "heads are split or merged by a view that mixes tokens",
        TextClassifier,
        ids,
    ),
    Case(
        "open_sora_frames",
        "head reshape",
        "https://github.com/PKU-YuanGroup/Open-Sora-Plan/issues/171",
        "a reshape mixes channels and frames",
        VideoEncoder,
        lambda: features(2, 3, 4, 6, 6),
    ),
    Case(
        "augmented_conv_reshape",
        "head reshape",
        "https://github.com/leaderj1001/Attention-Augmented-Conv2d/issues/21",
        "a reshape mixes channels and pixels",
        AugmentedNet,
        lambda: features(2, 3, 8, 8),
    ),
    Case(
        "loftr_frequencies",
        "positions",
        "https://github.com/zju3dv/LoFTR/issues/41",
        "most columns of the table of positions hardly change with the position",
        Matcher,
        lambda: {"image0": features(2, 1, 16, 16), "image1": features(2, 1, 16, 16)},
    ),
    Case(
        "leo_rotary_heads",
        "positions",
        "https://github.com/vukrosic/leo-optimizer/pull/2",
        "the rotation follows the heads instead of the tokens, or positions have no effect",
        RotaryModel,
        ids,
    ),
    Case(
        "torchmoji_uninitialized",
        "huge init",
        "https://github.com/huggingface/torchMoji/issues/11",
        "weights are huge or not initialized, or the output is not finite",
        EmojiModel,
        text,
    ),
    Case(
        "einygpt_head_size_init",
        "huge init",
        "https://github.com/clankur/einygpt/pull/3",
        "the projections or the attention scores start too large",
        lambda fixed: Decoder(*(PreNormWith(EinsumAttention(fixed)) for _ in range(2))),
        ids,
    ),
    Case(
        "tpu_normal_init",
        "huge init",
        "https://github.com/pytorch-tpu/transformers/pull/26",
        "the weights have deviation 1, or the first logits or loss are too large",
        deferred,
        ids,
    ),
    Case(
        "t5_head_variance",
        "huge init",
        "https://github.com/huggingface/transformers/pull/26441",
        "the first logits or the first loss are too large",
        TextToText,
        lambda: ids(2, 12, 2000),
    ),
]
