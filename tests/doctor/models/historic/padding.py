"""Padding that reaches valid tokens: masks of the wrong shape, polarity or place, or ignored."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.historic.cases import (
    LENGTH,
    VOCAB,
    Attention,
    D,
    PreLayer,
    Tokens,
    feed_forward,
    ids,
    join_heads,
    lengths,
    log_mask,
    padded_ids,
    register,
    split_heads,
    valid,
    vectors,
)

CASES = []


class Encoder(nn.Module):
    """Pre-LN layers that receive what `bias` makes of the padding."""

    def __init__(self, bias, attention=Attention, depth=2):
        super().__init__()
        self.embedding = Tokens(padding_idx=0)
        self.layers = nn.ModuleList(PreLayer(attention=attention) for _ in range(depth))
        self.norm, self.head, self.bias = nn.LayerNorm(D), nn.Linear(D, VOCAB), bias

    def forward(self, tokens, mask=None):
        x, bias = self.embedding(tokens), self.bias(tokens, mask)
        for layer in self.layers:
            x = layer(x, bias=bias)
        return self.head(self.norm(x))


class FusedAttention(Attention):
    def forward(self, x, bias=None):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        return self.o(join_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=bias)))


@register(
    CASES, "InseeFrLab/torchTextClassifiers#92", "padding_leak", lambda: (ids(), valid().long())
)
def inverted_mask_of_fused_attention(bug):
    def bias(_, mask):
        hidden = mask[:, None, None] == 0
        return hidden if bug else ~hidden

    return Encoder(bias, FusedAttention)


@register(CASES, "hyunwoongko/transformer#40", "padding_leak", padded_ids)
def mask_of_queries(bug):
    def bias(tokens, _):
        keep = (tokens != 0)[:, None, :, None] if bug else (tokens != 0)[:, None, None]
        return torch.zeros(keep.shape).masked_fill(~keep, -10000.0)

    return Encoder(bias)


class ConvolutionLayer(nn.Module):
    """Attention that respects the padding, and a convolution that may not."""

    def __init__(self, clean):
        super().__init__()
        self.attention, self.conv = Attention(), nn.Conv1d(D, D, 3, padding=1, groups=D)
        self.point, self.clean = nn.Conv1d(D, D, 1), clean
        self.n1, self.n2, self.n3, self.ff = *(nn.LayerNorm(D) for _ in range(3)), feed_forward()

    def forward(self, x, keep):
        x = x + self.attention(self.n1(x), bias=log_mask(keep)[:, None, None])
        y = self.n2(x)
        y = y * keep[..., None] if self.clean else y
        x = x + self.point(F.silu(self.conv(y.mT))).mT
        return x + self.ff(self.n3(x))


@register(CASES, "pytorch/audio#4205", "padding_leak", lambda: (vectors(), lengths()))
def conformer_ignores_lengths(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(ConvolutionLayer(clean=not bug) for _ in range(2))
            self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 5)

        def forward(self, frames, lengths):
            keep = torch.arange(frames.shape[1])[None] < lengths[:, None]
            for layer in self.layers:
                frames = layer(frames, keep)
            return self.head(self.norm(frames))

    return Model()


@register(CASES, "awslabs/gluonts#1401", "padding_leak", lambda: (ids(), valid().float()))
def tiny_instead_of_large_negative(bug):
    class Filled(Attention):
        def forward(self, x, bias=None):
            q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
            scores = q @ k.mT / 8**0.5
            scores = torch.where(bias[:, None, None] == 0, 1e-9 if bug else -1e9, scores)
            return self.o(join_heads(scores.softmax(-1) @ v))

    return Encoder(lambda _, mask: mask, Filled)


@register(
    CASES, "huggingface/pytorch-image-models#2236", "padding_leak",
    lambda: (ids(), valid()[:, None, None]),
)  # fmt: skip
def mask_after_softmax(bug):
    class Late(Attention):
        def forward(self, x, bias=None):
            q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
            scores = q @ k.mT / 8**0.5
            if bug:
                weights = scores.softmax(-1).masked_fill(~bias, 0.0)
            else:
                weights = scores.masked_fill(~bias, float("-inf")).softmax(-1)
            return self.o(join_heads(weights @ v))

    return Encoder(lambda _, mask: mask, Late)


@register(
    CASES, "facebookresearch/fairseq#318", "padding_leak",
    lambda: {"source": ids(), "target": ids()[:, :5], "source_mask": valid()},
)  # fmt: skip
def cross_attention_without_mask(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = Tokens(), Tokens()
            self.encoder = nn.ModuleList(PreLayer() for _ in range(2))
            self.middle, self.cross, self.query = nn.LayerNorm(D), Attention(), nn.LayerNorm(D)
            self.decoder = PreLayer()
            self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, VOCAB)

        def forward(self, source, target, source_mask):
            bias = log_mask(source_mask)[:, None, None]
            x = self.encode(source)
            for layer in self.encoder:
                x = layer(x, bias=bias)
            memory, y = self.middle(x), self.decode(target)
            y = y + self.cross(self.query(y), memory=memory, bias=None if bug else bias)
            return self.head(self.norm(self.decoder(y)))

    return Model()


@register(CASES, "espnet/espnet#6660", "padding_leak", lambda: (vectors(), valid()))
def convolution_reads_padding(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(ConvolutionLayer(clean=not bug) for _ in range(2))
            self.norm = nn.LayerNorm(D)

        def forward(self, x, mask):
            for layer in self.layers:
                x = layer(x, mask)
            return self.norm(x)

    return Model()


@register(CASES, "georg-wolflein/good-features#1", "padding_leak", lambda: (vectors(), valid()))
def scores_multiplied_by_mask(bug):
    class Pooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(D, D), nn.ReLU())
            self.score = nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 1))
            self.head = nn.Linear(D, 2)

        def forward(self, x, mask):
            x = self.body(x)
            score = self.score(x)[..., 0]
            score = score * mask if bug else score.masked_fill(~mask, float("-inf"))
            return self.head((score.softmax(1)[..., None] * x).sum(1))

    return Pooling()


@register(CASES, "pytorch/pytorch#81985", "padding_leak", lambda: (vectors(), valid()))
def group_norm_over_padding(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv1d(D, D, 1)
            self.norm = nn.GroupNorm(1, D) if bug else nn.LayerNorm(D)
            self.layers = nn.ModuleList(PreLayer() for _ in range(2))
            self.final = nn.LayerNorm(D)

        def forward(self, x, mask):
            x = self.first(x.mT)
            x = self.norm(x).mT if bug else self.norm(x.mT)
            for layer in self.layers:
                x = layer(x, bias=log_mask(mask)[:, None, None])
            return self.final(x)

    return Model()


@register(
    CASES, "jy-yuan/KIVI#46", "padding_leak", lambda: (ids(), valid().flip(1).long())
)  # left padding
def fused_path_drops_the_mask(bug):
    class Causal(FusedAttention):
        def forward(self, x, bias=None):
            q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
            if bug:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                t = x.shape[1]
                earlier = torch.ones(t, t, dtype=torch.bool).tril()
                seen = (bias[:, None, None] > 0) & earlier | torch.eye(t, dtype=torch.bool)
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            return self.o(join_heads(y))

    return Encoder(lambda _, mask: mask, Causal)


@register(
    CASES, "pytorch/pytorch#25132", "padding_leak",
    lambda: (vectors().transpose(0, 1).contiguous(), valid().T.contiguous()),
)  # fmt: skip
def mask_viewed_instead_of_transposed(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(D, 3, 48, norm_first=True) for _ in range(2)
            )
            self.norm = nn.LayerNorm(D)

        def forward(self, x, mask):  # (L, B, D), (L, B)
            hidden = ~mask
            hidden = hidden.reshape(hidden.shape[1], -1) if bug else hidden.T
            for layer in self.layers:
                x = layer(x, src_key_padding_mask=hidden)
            return self.norm(x)

    return Model()


@register(CASES, "Kyubyong/transformer#69", "padding_leak", padded_ids)
def mask_from_embeddings_with_positions(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(VOCAB, D, padding_idx=0)
            self.positions = nn.Parameter(torch.randn(LENGTH, D))
            self.layers = nn.ModuleList(PreLayer() for _ in range(2))
            self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, VOCAB)

        def forward(self, tokens):
            words = self.table(tokens)
            x = words + self.positions[: tokens.shape[1]]
            keep = (x if bug else words).abs().sum(-1) > 0
            for layer in self.layers:
                x = layer(x, bias=log_mask(keep)[:, None, None])
            return self.head(self.norm(x))

    return Model()
