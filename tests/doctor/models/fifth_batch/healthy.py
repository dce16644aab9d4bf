"""Correct models whose arrangement is unusual; none may be accused."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import (
    DIM,
    HEADS,
    TOKENS,
    VOCAB,
    Attention,
    Decoder,
    Embed,
    FeedForward,
    Healthy,
    PreBlock,
    RMSNorm,
    features,
    ids,
    initialize,
    merge_heads,
    split_heads,
    text,
)


class AlibiAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query_key_value, self.dense = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in self.query_key_value(x).chunk(3, -1))
        steps = torch.arange(x.shape[1])
        slopes = 2.0 ** -torch.arange(1, HEADS + 1)
        scores = q @ k.mT / q.shape[-1] ** 0.5 + slopes[:, None, None] * (steps - steps[:, None])
        scores = scores.masked_fill(steps > steps[:, None], torch.finfo(x.dtype).min)
        return self.dense(merge_heads(scores.softmax(-1) @ v))


class AlibiBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2, self.attn, self.mlp = (
            nn.LayerNorm(DIM),
            nn.LayerNorm(DIM),
            AlibiAttention(),
            FeedForward(),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Bloom(nn.Module):
    """A norm of the embeddings before a Pre-LN stack; positions are biases of the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings, self.word_embeddings_layernorm = (
            nn.Embedding(VOCAB, DIM),
            nn.LayerNorm(DIM),
        )
        self.h, self.ln_f = nn.ModuleList([AlibiBlock() for _ in range(2)]), nn.LayerNorm(DIM)
        initialize(self)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.word_embeddings_layernorm(self.word_embeddings(input_ids))
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.word_embeddings.weight.T


class WindowBlock(nn.Module):
    def __init__(self, dim: int, window: int = 2):
        super().__init__()
        self.window = window
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn, self.mlp = Attention(dim, 2), FeedForward(dim, 2)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        s = self.window
        y = self.norm1(x).view(b, h // s, s, w // s, s, c).transpose(2, 3).reshape(-1, s * s, c)
        y = self.attn(y).view(b, h // s, w // s, s, s, c).transpose(2, 3).reshape(b, h, w, c)
        x = x + y
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm, self.reduction = nn.LayerNorm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        return self.reduction(self.norm(torch.cat(corners, -1)))


class Swin(nn.Module):
    """The patches are normalized, and the first block starts with a norm again, by design."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.patch_norm = nn.Conv2d(3, 16, 2, 2), nn.LayerNorm(16)
        self.stage1, self.merge = nn.Sequential(WindowBlock(16), WindowBlock(16)), PatchMerging(16)
        self.stage2, self.norm, self.head = (
            nn.Sequential(WindowBlock(32), WindowBlock(32)),
            nn.LayerNorm(32),
            nn.Linear(32, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_norm(self.proj(images).permute(0, 2, 3, 1))
        x = self.stage2(self.merge(self.stage1(x)))
        return self.head(self.norm(x).mean((1, 2)))


class OlmoBlock(nn.Module):
    """Norms at the end of the branches, queries and keys normalized over all heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm, self.attn_norm, self.ff_norm = (RMSNorm() for _ in range(4))
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.ff = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q_norm(self.wq(x)), self.k_norm(self.wk(x)), self.wv(x)
        y = F.scaled_dot_product_attention(*(split_heads(p) for p in (q, k, v)), is_causal=True)
        x = x + self.attn_norm(self.wo(merge_heads(y)))
        return x + self.ff_norm(self.ff(x))


class SandwichBlock(nn.Module):
    """Gemma 2: norms before and after each sub-layer, scores capped by tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([RMSNorm() for _ in range(4)])
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.gate, self.up = nn.Linear(DIM, 64, bias=False), nn.Linear(DIM, 64, bias=False)
        self.down = nn.Linear(64, DIM, bias=False)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(p) for p in self.qkv(x).chunk(3, -1))
        scores = 50 * torch.tanh(q @ k.mT * q.shape[-1] ** -0.5 / 50)
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return self.o(merge_heads(scores.masked_fill(future, float("-inf")).softmax(-1) @ v))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norms[1](self.attend(self.norms[0](x)))
        y = self.norms[2](x)
        return x + self.norms[3](self.down(F.gelu(self.gate(y)) * self.up(y)))


class ParallelBlock(nn.Module):
    """GPT-J: attention and feed-forward read the same norm and are added together."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.mlp = nn.LayerNorm(DIM), Attention(causal=True), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        return x + self.attn(y) + self.mlp(y)


class WidthScaledAttention(nn.Module):
    """Maximal update parametrization: scores divided by the head size, queries start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.ffn_norm, self.ffn = nn.LayerNorm(DIM), nn.LayerNorm(DIM), FeedForward()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (split_heads(p) for p in (self.q(y), self.k(y), self.v(y)))
        scores = q @ k.mT / q.shape[-1]
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        x = x + self.o(merge_heads(scores.masked_fill(future, -1e30).softmax(-1) @ v))
        return x + self.ffn(self.ffn_norm(x))


class LayerScaleBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attn, self.mlp = (
            nn.LayerNorm(DIM),
            nn.LayerNorm(DIM),
            Attention(),
            FeedForward(),
        )
        self.ls1, self.ls2 = (
            nn.Parameter(1e-5 * torch.ones(DIM)),
            nn.Parameter(1e-5 * torch.ones(DIM)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.ls1 * self.attn(self.norm1(x))
        return x + self.ls2 * self.mlp(self.norm2(x))


class RegisterViT(nn.Module):
    """Register tokens and LayerScale; the norm follows the mean over the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, DIM, 4, 4)
        self.registers = nn.Parameter(torch.randn(1, 4, DIM) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 16, DIM) * 0.02)
        self.blocks = nn.Sequential(*(LayerScaleBlock() for _ in range(3)))
        self.fc_norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images).flatten(2).mT + self.pos_embed
        x = self.blocks(torch.cat([self.registers.expand(len(x), -1, -1), x], 1))
        return self.head(self.fc_norm(x[:, 4:].mean(1)))


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.tokens, self.channels = FeedForward(16, 2), FeedForward(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).mT).mT
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = (
            nn.Conv2d(3, DIM, 4, 4),
            nn.Sequential(*(MixerBlock() for _ in range(3))),
        )
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(images).flatten(2).mT)).mean(1))


class UnscaledBlock(nn.Module):
    """T5: no 1/sqrt(d) in the scores, queries initialized smaller instead; relative biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.relative = RMSNorm(), RMSNorm(), nn.Embedding(64, HEADS)
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.wi, self.wo = nn.Linear(DIM, 64, bias=False), nn.Linear(64, DIM, bias=False)
        nn.init.normal_(self.q.weight, std=(DIM * DIM // HEADS) ** -0.5)
        for linear in (self.k, self.v, self.o, self.wi):
            nn.init.normal_(linear.weight, std=DIM**-0.5)
        nn.init.normal_(self.wo.weight, std=64**-0.5)
        nn.init.normal_(self.relative.weight, std=DIM**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (split_heads(p) for p in (self.q(y), self.k(y), self.v(y)))
        steps = torch.arange(x.shape[1])
        bias = self.relative((steps - steps[:, None]) + 32).permute(2, 0, 1)
        x = x + self.o(merge_heads((q @ k.mT + bias).softmax(-1) @ v))
        return x + self.wo(F.relu(self.wi(self.norm2(x))))


class T5Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.block, self.final = (
            nn.Embedding(VOCAB, DIM),
            nn.Sequential(UnscaledBlock(), UnscaledBlock()),
            RMSNorm(),
        )

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.final(self.block(self.shared(input_ids)))


class TableBlock(nn.Module):
    def __init__(self, first: bool):
        super().__init__()
        self.norm1 = nn.Identity() if first else nn.LayerNorm(DIM)
        self.norm2, self.attn = nn.LayerNorm(DIM), Attention()
        self.up, self.down = nn.Linear(DIM, 2 * 48), nn.Linear(48, DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        a, b = self.up(self.norm2(x)).chunk(2, -1)
        return x + self.down(a * F.relu(b))


class FTTransformer(nn.Module):
    """Columns are tokens; the first attention reads them without a norm, as published."""

    def __init__(self, numbers: int = 5) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(numbers, DIM) * DIM**-0.5),
            nn.Parameter(torch.randn(numbers, DIM) * DIM**-0.5),
        )
        self.category, self.cls = nn.Embedding(9, DIM), nn.Parameter(torch.randn(DIM) * DIM**-0.5)
        self.blocks = nn.ModuleList([TableBlock(i == 0) for i in range(3)])
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        x = numbers[..., None] * self.weight + self.bias
        x = torch.cat([x, self.category(categories), self.cls.expand(len(x), 1, -1)], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(F.relu(self.norm(x[:, -1])))


class Perceiver(nn.Module):
    """A few learned latents read long inputs, then attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.project = nn.Parameter(torch.randn(6, DIM) * 0.02), nn.Linear(10, DIM)
        self.norm_q, self.norm_kv, self.read = nn.LayerNorm(DIM), nn.LayerNorm(DIM), Attention()
        self.norm_ff, self.ff = nn.LayerNorm(DIM), FeedForward()
        self.blocks, self.norm, self.out = (
            nn.Sequential(PreBlock(), PreBlock()),
            nn.LayerNorm(DIM),
            nn.Linear(DIM, 3),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        x = self.latents.expand(len(inputs), -1, -1)
        x = x + self.read(self.norm_q(x), None, self.norm_kv(self.project(inputs)))
        x = x + self.ff(self.norm_ff(x))
        return self.out(self.norm(self.blocks(x)).mean(1))


class LowRank(nn.Module):
    """A frozen linear layer with a trained low-rank part that starts at zero."""

    def __init__(self, base: nn.Linear, rank: int = 4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A, self.lora_B = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * self.lora_B(self.lora_A(x))


def adapted() -> nn.Module:
    model = Decoder(*(PreBlock(causal=True) for _ in range(2)))
    for block in model.blocks:
        block.attn.q, block.attn.v = LowRank(block.attn.q), LowRank(block.attn.v)
    return model


class RepeatedEncoder(nn.Module):
    """ALBERT: one Post-LN layer is applied several times, by design."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.norm = Embed(dim=16), nn.Linear(16, DIM), nn.LayerNorm(16)
        self.norm1, self.norm2, self.attn, self.ff = (
            nn.LayerNorm(DIM),
            nn.LayerNorm(DIM),
            Attention(),
            FeedForward(),
        )
        self.head = nn.Linear(DIM, 4)
        initialize(self)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.up(self.norm(self.embed(input_ids)))
        for _ in range(3):
            x = self.norm1(x + self.attn(x, attention_mask))
            x = self.norm2(x + self.ff(x))
        return self.head(x)


class SeriesBlock(nn.Module):
    """PatchTST: batch norm over the features of all patches in place of layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.ff, self.norm1, self.norm2 = (
            Attention(),
            FeedForward(),
            nn.BatchNorm1d(DIM),
            nn.BatchNorm1d(DIM),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1((x + self.attn(x)).mT).mT
        return self.norm2((x + self.ff(x)).mT).mT


class PatchSeries(nn.Module):
    """Every channel of the series is a sequence of patches of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Linear(8, DIM), nn.Parameter(torch.randn(6, DIM) * 0.02)
        self.blocks, self.head = nn.Sequential(SeriesBlock(), SeriesBlock()), nn.Linear(6 * DIM, 4)

    def forward(self, series: Tensor) -> Tensor:
        b, channels, _ = series.shape
        x = self.embed(series.unflatten(-1, (6, 8)).flatten(0, 1)) + self.positions
        return self.head(self.blocks(x).flatten(1)).view(b, channels, 4)


class DeepNormBlock(nn.Module):
    """Post-LN with a stronger skip, and value, output and feed-forward started smaller."""

    def __init__(self, depth: int):
        super().__init__()
        self.alpha, beta = (2 * depth) ** 0.25, (8 * depth) ** -0.25
        self.attn, self.ff, self.norm1, self.norm2 = (
            Attention(),
            FeedForward(),
            nn.LayerNorm(DIM),
            nn.LayerNorm(DIM),
        )
        for linear, gain in (
            (self.attn.q, 1),
            (self.attn.k, 1),
            (self.attn.v, beta),
            (self.attn.out, beta),
            (self.ff[0], beta),
            (self.ff[2], beta),
        ):
            nn.init.xavier_normal_(linear.weight, gain=gain)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.alpha * x + self.attn(x))
        return self.norm2(self.alpha * x + self.ff(x))


class DeepNormEncoder(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = (
            Embed(),
            nn.Sequential(*(DeepNormBlock(depth) for _ in range(depth))),
            nn.Linear(DIM, 5),
        )

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(input_ids)))


class AdaptiveBlock(nn.Module):
    """adaLN-Zero: shift, scale and gate come from the condition and start at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (
            nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6) for _ in range(2)
        )
        self.attn, self.mlp, self.modulation = (
            Attention(),
            FeedForward(),
            nn.Sequential(nn.SiLU(), nn.Linear(DIM, 6 * DIM)),
        )
        nn.init.zeros_(self.modulation[1].weight)
        nn.init.zeros_(self.modulation[1].bias)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        a, b, g, d, e, h = self.modulation(c)[:, None].chunk(6, -1)
        x = x + g * self.attn(self.norm1(x) * (1 + b) + a)
        return x + h * self.mlp(self.norm2(x) * (1 + e) + d)


class DiffusionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.time, self.label = (
            nn.Linear(12, DIM),
            nn.Linear(1, DIM),
            nn.Embedding(5, DIM),
        )
        self.blocks = nn.ModuleList([AdaptiveBlock() for _ in range(2)])
        self.norm, self.modulation = (
            nn.LayerNorm(DIM, elementwise_affine=False, eps=1e-6),
            nn.Linear(DIM, 2 * DIM),
        )
        self.out = nn.Linear(DIM, 12)
        for linear in (self.modulation, self.out):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, latents: Tensor, t: Tensor, label: Tensor) -> Tensor:
        c = self.time(t[:, None]) + self.label(label)
        x = self.embed(latents)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.modulation(F.silu(c))[:, None].chunk(2, -1)
        return self.out(self.norm(x) * (1 + scale) + shift)


class SetModel(nn.Module):
    """Sets have no order: no positions, and the padded members are masked in a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks, self.norm, self.out = (
            nn.Linear(7, DIM),
            nn.ModuleList([PreBlock(), PreBlock()]),
            nn.LayerNorm(DIM),
            nn.Linear(DIM, 1),
        )

    def forward(self, members: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(members)
        for block in self.blocks:
            x = block(x, mask)
        weights = mask[..., None].to(x.dtype)
        return self.out((self.norm(x) * weights).sum(1) / weights.sum(1))


class SequenceFirst(nn.Module):
    """nn.TransformerEncoder in its own layout, with layers that were initialized one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Embed()
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 64, dropout=0.1, norm_first=True)
        self.encoder = nn.TransformerEncoder(
            layer, 2, nn.LayerNorm(DIM), enable_nested_tensor=False
        )
        for parameter in self.encoder.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        self.decoder = nn.Linear(DIM, VOCAB)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids).transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(len(x))
        return self.decoder(self.encoder(x, mask=mask, is_causal=True)).transpose(0, 1)


def images() -> Tensor:
    return features(3, 3, 16, 16)


HEALTHY = [
    Healthy("bloom", Bloom, ids),
    Healthy("swin", Swin, images),
    Healthy("olmo2", lambda: Decoder(*(OlmoBlock() for _ in range(2)), final=RMSNorm()), ids),
    Healthy("gemma2", lambda: Decoder(*(SandwichBlock() for _ in range(2)), final=RMSNorm()), ids),
    Healthy("gptj_parallel", lambda: Decoder(*(ParallelBlock() for _ in range(3))), ids),
    Healthy("mup_scores", lambda: Decoder(*(WidthScaledAttention() for _ in range(2))), ids),
    Healthy("register_vit", RegisterViT, images),
    Healthy("mixer", Mixer, images),
    Healthy("t5_encoder", T5Encoder, ids),
    Healthy(
        "ft_transformer",
        FTTransformer,
        lambda: {"numbers": features(4, 5), "categories": ids(4, 2, 9)},
    ),
    Healthy("perceiver", Perceiver, lambda: features(2, 30, 10)),
    Healthy("lora", adapted, ids),
    Healthy("albert", RepeatedEncoder, text),
    Healthy("patch_tst", PatchSeries, lambda: features(3, 2, 48)),
    Healthy("deepnorm", DeepNormEncoder, ids),
    Healthy(
        "dit",
        DiffusionTransformer,
        lambda: {"latents": features(2, 9, 12), "t": features(2), "label": ids(2, 1, 5)[:, 0]},
    ),
    Healthy(
        "set_model",
        SetModel,
        lambda: {"members": features(3, TOKENS, 7), "mask": text()["attention_mask"]},
    ),
    Healthy("sequence_first", SequenceFirst, ids),
]
