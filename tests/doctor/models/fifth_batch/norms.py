"""Norms that are doubled, on the wrong axis, badly initialized, shared, or too precise for half."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import (
    DIM,
    HEADS,
    TOKENS,
    Attention,
    Case,
    Decoder,
    FeedForward,
    PostBlock,
    PreBlock,
    RMSNorm,
    features,
    ids,
    initialize,
    merge_heads,
    patches,
    split_heads,
)

# -- https://github.com/DAGroup-PKU/MHLA/issues/10


class LinearAttention(nn.Module):
    def __init__(self, dim: int, heads: int, norm: nn.Module):
        super().__init__()
        self.norm, self.heads = norm, heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        q, k, v = (split_heads(p, self.heads) for p in self.qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        context = k.transpose(-1, -2) @ v
        normalizer = q @ k.sum(-2, keepdim=True).transpose(-1, -2)
        return self.proj(merge_heads(q @ context / (normalizer + 1e-6)))


class VisionBlock(nn.Module):
    def __init__(self, dim: int, attn: nn.Module):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps=1e-6), attn
        self.norm2, self.mlp = nn.LayerNorm(dim, eps=1e-6), FeedForward(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, blocks: list[nn.Module], dim: int = DIM):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, 10)
        initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def mhla(fixed: bool) -> nn.Module:
    def attention() -> nn.Module:
        return LinearAttention(DIM, HEADS, nn.Identity() if fixed else nn.LayerNorm(DIM))

    return VisionTransformer([VisionBlock(DIM, attention()) for _ in range(3)])


# -- https://github.com/espnet/espnet/issues/5277


class SpeechEncoder(nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv1d(16, DIM, 3, 2, 1), nn.ReLU())
        self.layers = nn.ModuleList([PreBlock() for _ in range(2)])
        self.after_norm, self.ctc = nn.LayerNorm(DIM), nn.Linear(DIM, 20)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = eps

    def forward(self, speech: Tensor) -> Tensor:
        x = self.subsample(speech.transpose(1, 2)).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.ctc(self.after_norm(x))


# -- https://github.com/pyg-team/pytorch_geometric/pull/2106

EPS = 1e-15


class NodeNorm(nn.Module):
    def __init__(self, dim: int, by_precision: bool):
        super().__init__()
        self.by_precision = by_precision
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        eps = 1e-3 if self.by_precision and x.dtype is torch.float16 else EPS
        centered = x - x.mean(-1, keepdim=True)
        variance = centered.square().mean(-1, keepdim=True)
        return centered / torch.sqrt(variance + eps) * self.weight + self.bias


class GraphTransformer(nn.Module):
    """Nodes attend to their neighbours of a dense adjacency."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.embed = nn.Linear(8, DIM)
        self.attention = nn.ModuleList([Attention(heads=2) for _ in range(2)])
        self.norms = nn.ModuleList([NodeNorm(DIM, fixed) for _ in range(2)])
        self.out = nn.Linear(DIM, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for attention, norm in zip(self.attention, self.norms, strict=True):
            h = norm(h + attention(h))
        return self.out(h)


# -- https://github.com/jingyaogong/minimind/issues/301


class HalfRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-8):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        # Only the numerator is in float32; the statistic is computed in the precision of x.
        return self.weight * (
            x.float() * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        ).type_as(x)


class LlamaBlock(nn.Module):
    def __init__(self, norm: type[nn.Module], **options: float):
        super().__init__()
        self.attention_norm, self.ffn_norm = norm(DIM, **options), norm(DIM, **options)
        self.attention = Attention(causal=True)
        self.w1, self.w3 = nn.Linear(DIM, 64, bias=False), nn.Linear(DIM, 64, bias=False)
        self.w2 = nn.Linear(64, DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x))
        z = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(z)) * self.w3(z))


def minimind(fixed: bool) -> nn.Module:
    norm = RMSNorm if fixed else HalfRMSNorm
    options = {"eps": 1e-5} if fixed else {}
    return Decoder(
        *(LlamaBlock(norm, **options) for _ in range(2)), final=norm(DIM, **options)
    ).half()


# -- https://github.com/sharathadavanne/seld-dcase2021/issues/8


class SoundDetector(nn.Module):
    """Spectrograms (batch, channels, time, frequency)."""

    def __init__(self, channels_first: bool):
        super().__init__()
        self.channels_first = channels_first
        self.convs = nn.ModuleList(
            [nn.Conv2d(4, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16)])
        self.project = nn.Linear(16 * 16, DIM)
        self.encoder = nn.ModuleList([PostBlock() for _ in range(2)])
        self.sed = nn.Linear(DIM, 7)

    def forward(self, spectrum: Tensor) -> Tensor:
        x = spectrum
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = conv(x)
            # Without the repair the last axis, frequency, is taken for the channels.
            x = norm(x) if self.channels_first else norm(x.transpose(1, 3)).transpose(1, 3)
            x = F.relu(x)
        x = self.project(x.permute(0, 2, 1, 3).flatten(2))
        for layer in self.encoder:
            x = layer(x)
        return self.sed(x).sigmoid()


# -- https://github.com/patrick-kidger/equinox/pull/471


class WholeNorm(nn.Module):
    """Normalizes everything but the batch unless it is mapped over the tokens."""

    def __init__(self, dim: int, mapped: bool):
        super().__init__()
        self.mapped = mapped
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        axes = (-1,) if self.mapped else (-2, -1)
        mean, variance = x.mean(axes, keepdim=True), x.var(axes, unbiased=False, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


class MappedBlock(nn.Module):
    def __init__(self, mapped: bool):
        super().__init__()
        self.ln1, self.ln2 = WholeNorm(DIM, mapped), WholeNorm(DIM, mapped)
        self.attn, self.mlp = Attention(), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class PatchClassifier(nn.Module):
    def __init__(self, mapped: bool):
        super().__init__()
        self.embed = nn.Linear(48, DIM)
        self.positions = nn.Parameter(torch.randn(16, DIM) * 0.02)
        self.blocks = nn.ModuleList([MappedBlock(mapped) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(patches(images, 4)) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.mean(1)))


# -- https://github.com/fkodom/yet-another-retnet/pull/11


class Retention(nn.Module):
    def __init__(self, per_token: bool):
        super().__init__()
        self.per_token = per_token
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.gate, self.out = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.group_norm = nn.GroupNorm(HEADS, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in (self.q(x), self.k(x), self.v(x)))
        steps = torch.arange(x.shape[1])
        gamma = 1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float32))
        distance = (steps[:, None] - steps).clamp(min=0)
        decay = (gamma[:, None, None] ** distance) * (steps[:, None] >= steps)
        y = merge_heads((q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 * decay) @ v)
        if self.per_token:
            y = self.group_norm(y.flatten(0, 1)).view_as(x)
        else:
            y = self.group_norm(y.transpose(1, 2)).transpose(1, 2)
        return self.out(F.silu(self.gate(x)) * y)


class RetNetBlock(nn.Module):
    def __init__(self, per_token: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.retention, self.ffn = Retention(per_token), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.retention(self.norm1(x))
        return x + self.ffn(self.norm2(x))


# -- https://github.com/kyegomez/MegaVIT/issues/17


class QKNormAttention(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.to_qkv, self.to_out = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM)
        self.norm_q, self.norm_k = RMSNorm(DIM // HEADS), RMSNorm(DIM // HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in self.to_qkv(x).chunk(3, -1))
        if self.fixed:
            q, k = self.norm_q(q), self.norm_k(k)
        else:
            k, v = self.norm_q(k), self.norm_k(v)
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return self.to_out(merge_heads(weights @ v))


# -- https://github.com/huggingface/transformers/issues/143


class Bert(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.word, self.position = nn.Embedding(60, DIM), nn.Embedding(32, DIM)
        self.LayerNorm, self.dropout = nn.LayerNorm(DIM, eps=1e-5), nn.Dropout(0.1)
        self.encoder = nn.ModuleList([PostBlock() for _ in range(2)])
        self.pooler, self.classifier = nn.Linear(DIM, DIM), nn.Linear(DIM, 2)
        self.apply(self.init_fixed if fixed else self.init_weights)

    @staticmethod
    def init_fixed(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.data.normal_(0.0, 0.02)
        if isinstance(module, nn.Linear):
            module.bias.data.zero_()

    @classmethod
    def init_weights(cls, module: nn.Module) -> None:
        cls.init_fixed(module)
        if isinstance(module, nn.LayerNorm):
            module.weight.data.normal_(0.0, 0.02)
            module.bias.data.normal_(0.0, 0.02)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.word(input_ids) + self.position(torch.arange(input_ids.shape[1]))
        x = self.dropout(self.LayerNorm(x))
        for layer in self.encoder:
            x = layer(x)
        return self.classifier(self.pooler(x[:, 0]).tanh())


# -- https://github.com/flagos-ai/FlagPerf/pull/683


class EmptyRMSNorm(RMSNorm):
    """The gain is allocated and never filled; what the memory holds is written out here."""

    def __init__(self, dim: int):
        super().__init__(dim, 1e-5)
        self.weight.data = torch.logspace(-20, 20, dim)


def chatglm(fixed: bool) -> nn.Module:
    norm = RMSNorm if fixed else EmptyRMSNorm
    return Decoder(*(LlamaBlock(norm) for _ in range(2)), final=norm(DIM))


# -- https://github.com/facebookresearch/xformers/pull/233


class PreNorm(nn.Module):
    """Wrapper around a sub-layer that receives query, key and value."""

    def __init__(self, sublayer: nn.Module, fixed: bool):
        super().__init__()
        self.norm, self.sublayer, self.fixed = nn.LayerNorm(DIM), sublayer, fixed

    def forward(self, *inputs: Tensor) -> Tensor:
        first, *rest = inputs
        others = [self.norm(x) for x in rest] if self.fixed else rest
        return self.sublayer(self.norm(first), *others)


class DotProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(DIM, HEADS, batch_first=True)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.mha(q, k, v, need_weights=False)[0]


class WrappedBlock(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.mha, self.ffn = PreNorm(DotProduct(), fixed), PreNorm(FeedForward(), fixed)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mha(x, x, x)
        return x + self.ffn(x)


# -- https://github.com/lucidrains/mmdit/issues/4


class JointBlock(nn.Module):
    """Text and image tokens attend to each other; each has its own norms and feed-forward."""

    def __init__(self, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.attn = Attention()
        self.text_attn_norm, self.image_attn_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.text_ff_norm, self.image_ff_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.text_ff, self.image_ff = FeedForward(), FeedForward()

    def forward(self, text: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        both = self.attn(torch.cat([self.text_attn_norm(text), self.image_attn_norm(image)], 1))
        attended_text, attended_image = both.split([text.shape[1], image.shape[1]], 1)
        text, image = text + attended_text, image + attended_image
        text_norm = self.text_ff_norm if self.fixed else self.text_attn_norm
        image_norm = self.image_ff_norm if self.fixed else self.image_attn_norm
        return text + self.text_ff(text_norm(text)), image + self.image_ff(image_norm(image))


class MultimodalTransformer(nn.Module):
    def __init__(self, fixed: bool):
        super().__init__()
        self.blocks = nn.ModuleList([JointBlock(fixed) for _ in range(2)])
        self.text_norm, self.image_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, text: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            text, image = block(text, image)
        return self.text_norm(text), self.image_norm(image)


def images() -> Tensor:
    return features(3, 3, 16, 16)


CASES = [
    Case(
        "mhla_repeated_norm",
        "norms doubled",
        "https://github.com/DAGroup-PKU/MHLA/issues/10",
        "two norms follow each other before the attention",
        mhla,
        images,
    ),
    Case(
        "espnet_eps",
        "epsilon too small",
        "https://github.com/espnet/espnet/issues/5277",
        "epsilon 1e-12 is too small for half precision",
        lambda fixed: SpeechEncoder(1e-5 if fixed else 1e-12).half(),
        lambda: features(2, 24, 16).half(),
    ),
    Case(
        "graph_eps",
        "epsilon too small",
        "https://github.com/pyg-team/pytorch_geometric/pull/2106",
        "epsilon 1e-15 is too small for half precision",
        lambda fixed: GraphTransformer(fixed).half(),
        lambda: features(2, 10, 8).half(),
    ),
    Case(
        "minimind_half_statistic",
        "epsilon too small",
        "https://github.com/jingyaogong/minimind/issues/301",
        "the statistic of the norm is computed in half, or its epsilon is too small there",
        minimind,
        ids,
    ),
    Case(
        "seld_frequency_norm",
        "norm over the wrong axis",
        "https://github.com/sharathadavanne/seld-dcase2021/issues/8",
        "the batch norm acts on the frequency axis instead of the channels",
        SoundDetector,
        lambda: features(2, 4, 12, 16),
    ),
    Case(
        "equinox_sequence_norm",
        "norm over the wrong axis",
        "https://github.com/patrick-kidger/equinox/pull/471",
        "the norm takes its statistics over the tokens too",
        PatchClassifier,
        images,
    ),
    Case(
        "retnet_group_norm",
        "norm over the wrong axis",
        "https://github.com/fkodom/yet-another-retnet/pull/11",
        "the group norm takes its statistics over the tokens, or tokens see the future through it",
        lambda fixed: Decoder(*(RetNetBlock(fixed) for _ in range(2))),
        ids,
    ),
    Case(
        "mega_vit_key_value_norm",
        "norm over the wrong axis",
        "https://github.com/kyegomez/MegaVIT/issues/17",
        "keys and values are normalized instead of queries and keys",
        lambda fixed: VisionTransformer(
            [VisionBlock(DIM, QKNormAttention(fixed)) for _ in range(2)]
        ),
        images,
    ),
    Case(
        "bert_norm_gains",
        "scales without their initialisation",
        "https://github.com/huggingface/transformers/issues/143",
        "the gains of the norms are random around zero instead of one",
        Bert,
        lambda: ids(3, TOKENS, 60),
    ),
    Case(
        "chatglm_empty_gains",
        "scales without their initialisation",
        "https://github.com/flagos-ai/FlagPerf/pull/683",
        "the gains of the norms are not initialized, or huge, or the output is not finite",
        chatglm,
        ids,
    ),
    Case(
        "xformers_first_input_only",
        "other norms",
        "https://github.com/facebookresearch/xformers/pull/233",
        "only the query is normalized; key and value read the stream without a norm",
        lambda fixed: nn.Sequential(*(WrappedBlock(fixed) for _ in range(2)), nn.LayerNorm(DIM)),
        lambda: features(2, TOKENS, DIM),
    ),
    Case(
        "mmdit_attention_norm_reused",
        "other norms",
        "https://github.com/lucidrains/mmdit/issues/4",
        "one norm serves two sub-layers, or the norms of the feed-forwards are unused",
        MultimodalTransformer,
        lambda: {"text": features(2, 6, DIM), "image": features(2, 9, DIM)},
    ),
]
