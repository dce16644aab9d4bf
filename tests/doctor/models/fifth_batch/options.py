"""Options of a model that have no effect."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .norms import VisionTransformer
from .parts import (
    DIM,
    HEADS,
    VOCAB,
    Attention,
    Case,
    Embed,
    FeedForward,
    PreBlock,
    RMSNorm,
    features,
    ids,
    initialize,
    merge_heads,
    split_heads,
)

# -- https://github.com/NX-AI/tirex/issues/19


class ResidualPatch(nn.Module):
    """Embeds patches of a series by a small residual network."""

    def __init__(self, inputs: int, hidden: int, dropout: float, fixed: bool):
        super().__init__()
        self.fixed, self.dropout = fixed, nn.Dropout(dropout)
        self.hidden_layer, self.output_layer = nn.Linear(inputs, hidden), nn.Linear(hidden, DIM)
        self.residual_layer = nn.Linear(inputs, DIM)

    def forward(self, x: Tensor) -> Tensor:
        y = self.output_layer(F.relu(self.hidden_layer(x)))
        if self.fixed:
            y = self.dropout(y)
        return y + self.residual_layer(x)


class Forecaster(nn.Module):
    def __init__(self, fixed: bool, hidden: int = 48, dropout: float = 0.1, horizon: int = 4):
        super().__init__()
        self.embed = ResidualPatch(8, hidden, dropout, fixed)
        self.blocks = nn.Sequential(PreBlock(), PreBlock())
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, horizon)

    def forward(self, series: Tensor) -> Tensor:
        x = self.embed(series.unflatten(1, (-1, 8)))
        return self.head(self.norm(self.blocks(x)[:, -1]))


# -- https://github.com/EleutherAI/gpt-neo/issues/79


class NeoBlock(nn.Module):
    def __init__(self, activation: str, fixed: bool):
        super().__init__()
        self.ln_1, self.ln_2, self.attn = (
            nn.LayerNorm(DIM),
            nn.LayerNorm(DIM),
            Attention(causal=True),
        )
        self.c_fc, self.c_proj = nn.Linear(DIM, 128), nn.Linear(128, DIM)
        self.act = getattr(F, activation) if fixed else F.gelu

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(self.act(self.c_fc(self.ln_2(x))))


class Neo(nn.Module):
    def __init__(self, fixed: bool, activation_function: str = "relu", n_layer: int = 2):
        super().__init__()
        self.embed, self.ln_f = Embed(), nn.LayerNorm(DIM)
        self.h = nn.ModuleList([NeoBlock(activation_function, fixed) for _ in range(n_layer)])
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        initialize(self)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


# -- https://github.com/huggingface/transformers/issues/38025


class VisionLanguage(nn.Module):
    """Image patches are normalized, projected and read by a language model before the text."""

    def __init__(self, fixed: bool, rms_norm_eps: float = 1e-5, width: int = 24):
        super().__init__()
        self.vision = nn.Linear(48, width)
        self.projector_norm = RMSNorm(width, rms_norm_eps) if fixed else RMSNorm(width)
        self.linear_1, self.linear_2 = nn.Linear(width, DIM), nn.Linear(DIM, DIM)
        self.embed, self.layers = Embed(), nn.ModuleList([PreBlock(causal=True) for _ in range(2)])
        self.norm, self.lm_head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)
        initialize(self)

    def forward(self, pixels: Tensor, input_ids: Tensor) -> Tensor:
        image = self.linear_2(F.gelu(self.linear_1(self.projector_norm(self.vision(pixels)))))
        x = torch.cat([image, self.embed(input_ids)], 1)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


# -- https://github.com/facebookresearch/deit/pull/123


class DropPath(nn.Module):
    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = 1 - self.rate
        return x * torch.bernoulli(torch.full((len(x), 1, 1), keep)) / keep


class CaitBlock(nn.Module):
    def __init__(self, drop_path: float, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn, self.mlp, self.drop_path = Attention(), FeedForward(), DropPath(drop_path)
        self.gamma_1 = nn.Parameter(0.1 * torch.ones(DIM))
        self.gamma_2 = nn.Parameter(0.1 * torch.ones(DIM))

    def forward(self, x: Tensor) -> Tensor:
        drop = self.drop_path if self.fixed else nn.Identity()
        x = x + drop(self.gamma_1 * self.attn(self.norm1(x)))
        return x + drop(self.gamma_2 * self.mlp(self.norm2(x)))


def cait(fixed: bool, drop_path_rate: float = 0.2, depth: int = 3) -> nn.Module:
    return VisionTransformer([CaitBlock(drop_path_rate, fixed) for _ in range(depth)])


# -- https://github.com/huggingface/pytorch-image-models/issues/1851


class Mlp(nn.Module):
    def __init__(self, norm_layer: bool, fixed: bool):
        super().__init__()
        self.fixed = fixed
        self.fc1, self.act, self.fc2 = nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM)
        self.norm = nn.LayerNorm(64) if norm_layer else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.fc1(x))
        return self.fc2(self.norm(x) if self.fixed else x)


class TimmBlock(nn.Module):
    def __init__(self, norm_layer: bool, fixed: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn, self.mlp = Attention(), Mlp(norm_layer, fixed)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def timm_mlp(fixed: bool, mlp_norm: bool = True, depth: int = 2) -> nn.Module:
    return VisionTransformer([TimmBlock(mlp_norm, fixed) for _ in range(depth)])


# -- https://github.com/keras-team/keras/issues/23038


class CausalOption(nn.Module):
    """The fused kernel applies the causal mask; with dropout the written-out path forgets it."""

    def __init__(self, causal: bool, dropout: float, fixed: bool):
        super().__init__()
        self.causal, self.rate, self.fixed = causal, dropout, fixed
        self.qkv, self.out, self.dropout = (
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, DIM),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in self.qkv(x).chunk(3, -1))
        if self.rate == 0:
            return self.out(
                merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal))
            )
        scores = q @ k.mT / (DIM // HEADS) ** 0.5
        if self.causal and self.fixed:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        return self.out(merge_heads(self.dropout(scores.softmax(-1)) @ v))


class CausalOptionModel(nn.Module):
    def __init__(self, fixed: bool, use_causal_mask: bool = True, dropout: float = 0.1):
        super().__init__()
        self.embed, self.norm = Embed(), nn.LayerNorm(DIM)
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(4)])
        self.attention = nn.ModuleList(
            [CausalOption(use_causal_mask, dropout, fixed) for _ in range(2)]
        )
        self.feedforward = nn.ModuleList([FeedForward() for _ in range(2)])
        self.head = nn.Linear(DIM, VOCAB, bias=False)
        initialize(self)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for i in range(2):
            x = x + self.attention[i](self.norms[2 * i](x))
            x = x + self.feedforward[i](self.norms[2 * i + 1](x))
        return self.head(self.norm(x))


# -- https://github.com/Modalities/modalities/issues/357


class TiedModel(nn.Module):
    def __init__(self, fixed: bool, use_weight_tying: bool = True, n_layer: int = 2):
        super().__init__()
        self.wte, self.wpe, self.ln_f = (
            nn.Embedding(VOCAB, DIM),
            nn.Embedding(64, DIM),
            nn.LayerNorm(DIM),
        )
        self.h = nn.ModuleList([PreBlock(causal=True) for _ in range(n_layer)])
        self.lm_head = nn.Linear(DIM, VOCAB, bias=False)
        if use_weight_tying and fixed:
            self.lm_head.weight = self.wte.weight
        # Without the repair the weights are allocated again after they were tied.
        initialize(self)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def case(name: str, source: str, option: str, model: Any, inputs: Any, **options: Any) -> Case:
    return Case(
        name,
        "option without effect",
        "https://github.com/" + source,
        f"the option {option} has no effect",
        lambda fixed: model(fixed, **options),
        inputs,
        options,
        model,
    )


def pixels_and_text() -> dict[str, Tensor]:
    return {"pixels": features(2, 6, 48), "input_ids": ids(2, 7)}


def images() -> Tensor:
    return features(3, 3, 16, 16)


CASES = [
    case(
        "tirex_dropout",
        "NX-AI/tirex/issues/19",
        "dropout",
        Forecaster,
        lambda: features(3, 48),
        hidden=48,
        dropout=0.3,
        horizon=4,
    ),
    case(
        "gpt_neo_activation",
        "EleutherAI/gpt-neo/issues/79",
        "activation_function",
        Neo,
        ids,
        activation_function="relu",
        n_layer=2,
    ),
    case(
        "mistral3_eps",
        "huggingface/transformers/issues/38025",
        "rms_norm_eps",
        VisionLanguage,
        pixels_and_text,
        rms_norm_eps=1e-5,
        width=24,
    ),
    case(
        "cait_drop_path",
        "facebookresearch/deit/pull/123",
        "drop_path_rate",
        cait,
        images,
        drop_path_rate=0.2,
        depth=3,
    ),
    case(
        "timm_mlp_norm",
        "huggingface/pytorch-image-models/issues/1851",
        "mlp_norm (or: a norm is never used)",
        timm_mlp,
        images,
        mlp_norm=True,
        depth=2,
    ),
    case(
        "keras_causal_option",
        "keras-team/keras/issues/23038",
        "use_causal_mask",
        CausalOptionModel,
        ids,
        use_causal_mask=True,
        dropout=0.1,
    ),
    case(
        "modalities_tying",
        "Modalities/modalities/issues/357",
        "use_weight_tying",
        TiedModel,
        ids,
        use_weight_tying=True,
        n_layer=2,
    ),
]
