"""Second batch: masks without effect, and softmaxes over the wrong numbers."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, padded, stream

FUTURE = "error: positions see the future although a causal mask is applied"
LEAK = "error or warning: padding changes the outputs of real tokens"


class Attention(nn.Module):
    """Attention whose mask is applied by a given function."""

    def __init__(self, dim, apply_mask, heads=4):
        super().__init__()
        self.heads, self.apply_mask = heads, apply_mask
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, mask, memory=None):
        memory = x if memory is None else memory
        pairs = ((self.q, x), (self.k, memory), (self.v, memory))
        q, k, v = (p(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p, y in pairs)
        scores = self.apply_mask(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), mask)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, dim, apply_mask):
        super().__init__()
        self.attention, self.norm1, self.norm2 = (
            Attention(dim, apply_mask),
            nn.LayerNorm(dim),
            nn.LayerNorm(dim),
        )
        self.ff = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))

    def forward(self, x, mask):
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.ff(x))


class Encoder(nn.Module):
    def __init__(self, apply_mask, make_mask, dim=64, out=50):
        super().__init__()
        self.embedding, self.position = nn.Embedding(50, dim, padding_idx=0), nn.Embedding(32, dim)
        self.layers = nn.ModuleList([Layer(dim, apply_mask) for _ in range(3)])
        self.out, self.make_mask = nn.Linear(dim, out), make_mask

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position.weight[: tokens.size(1)]
        mask = self.make_mask(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.out(x)


def causal(tokens):
    return torch.ones(tokens.size(1), tokens.size(1), dtype=torch.bool).tril()


@bug("causal mask", "https://github.com/awslabs/gluonts/pull/1401", FUTURE, ids(2, 14))
def gluonts_small_fill(broken):
    fill = 1e-9 if broken else -1e9
    return Encoder(lambda s, m: s.masked_fill(~m, fill), causal)


@bug("padding", "https://github.com/hyunwoongko/transformer/issues/10", LEAK, padded)
def hyunwoongko_epsilon_fill(broken):
    fill = -1e-12 if broken else -10000.0
    return Encoder(lambda s, m: s.masked_fill(m == 0, fill), lambda t: (t != 0)[:, None, None])


@bug("causal mask", "https://github.com/huggingface/transformers/pull/41443", FUTURE, ids(2, 14))
def qwen3_boolean_mask_added(broken):
    def apply(scores, mask):
        if broken:
            return scores + mask
        return scores + torch.zeros_like(scores).masked_fill(~mask, float("-inf"))

    return Encoder(apply, causal)


@bug(
    "padding",
    "https://github.com/huggingface/transformers/issues/13555",
    LEAK,
    lambda: {"tokens": padded(), "attention_mask": (padded() != 0).float()},
)
def tokenizer_mask_added(broken):
    class Model(Encoder):
        def forward(self, tokens, attention_mask):
            x = self.embedding(tokens) + self.position.weight[: tokens.size(1)]
            mask = attention_mask[:, None, None, :]
            mask = mask if broken else (1 - mask) * -1e9
            for layer in self.layers:
                x = layer(x, mask)
            return self.out(x)

    return Model(lambda scores, mask: scores + mask, None)


@bug(
    "padding",
    "https://github.com/line/lighthouse/pull/77",
    LEAK,
    lambda: (torch.randn(4, 9, 64), torch.randn(4, 12, 64), padded() == 0),
)
def lighthouse_cross_attention_repeat(broken):
    class T2VLayer(nn.Module):
        def __init__(self, dim=64, nhead=4):
            super().__init__()
            self.nhead, self.cross = nhead, nn.MultiheadAttention(dim, nhead, batch_first=True)
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.linear1, self.linear2 = nn.Linear(dim, 128), nn.Linear(128, dim)

        def forward(self, video, text, text_mask):
            mask = text_mask.unsqueeze(1).expand(-1, video.size(1), -1)
            if broken:
                mask = mask.repeat(self.nhead, 1, 1)
            else:
                mask = mask.repeat_interleave(self.nhead, dim=0)
            video = self.norm1(video + self.cross(video, text, text, attn_mask=mask)[0])
            return self.norm2(video + self.linear2(F.relu(self.linear1(video))))

    class T2V(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.span = nn.ModuleList([T2VLayer() for _ in range(2)]), nn.Linear(64, 2)

        def forward(self, video, text, text_mask):
            for layer in self.layers:
                video = layer(video, text, text_mask)
            return self.span(video)

    return T2V()


@bug(
    "softmax axis",
    "https://github.com/facebookresearch/detr/issues/247",
    "error or warning: the softmax runs over heads and keys together",
    stream(2, 12, 64),
)
def detr_softmax_over_heads(broken):
    class Block(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, self.qkv, self.o = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.ff = nn.Sequential(nn.Linear(dim, 128), nn.ReLU(), nn.Linear(128, dim))

        def attend(self, x):
            q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, -1))
            weights = torch.einsum("bqnc,bknc->bqnk", q * q.size(-1) ** -0.5, k)
            start = 2 if broken else 3
            weights = F.softmax(weights.flatten(start), dim=-1).view(weights.size())
            return self.o(torch.einsum("bqnk,bknc->bqnc", weights, v).flatten(2))

        def forward(self, x):
            x = x + self.attend(self.norm1(x))
            return x + self.ff(self.norm2(x))

    return nn.Sequential(*[Block() for _ in range(3)], nn.LayerNorm(64), nn.Linear(64, 10))


@bug(
    "scale",
    "https://github.com/FrancescoSaverioZuppichini/ViT/issues/1",
    "warning: the scores are not scaled before the softmax (the weights are divided after it)",
    stream(2, 12, 64),
)
def zuppichini_scale_after_softmax(broken):
    class Block(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, self.dim = heads, dim
            self.keys, self.queries, self.values, self.projection = (
                nn.Linear(dim, dim) for _ in range(4)
            )
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

        def attend(self, x):
            q, k, v = (
                p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for p in (self.queries, self.keys, self.values)
            )
            energy = torch.einsum("bhqd,bhkd->bhqk", q, k)
            if broken:
                att = F.softmax(energy, dim=-1) / self.dim**0.5
            else:
                att = F.softmax(energy / (self.dim // self.heads) ** 0.5, dim=-1)
            out = torch.einsum("bhal,bhlv->bhav", att, v)
            return self.projection(out.transpose(1, 2).flatten(2))

        def forward(self, x):
            x = x + self.attend(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    return nn.Sequential(*[Block() for _ in range(3)], nn.LayerNorm(64), nn.Linear(64, 10))


@bug(
    "scale",
    "https://github.com/aladdinpersson/Machine-Learning-Collection/issues/65",
    "warning: the scores are divided by the root of the embedding size, not of the head",
    ids(2, 10),
)
def aladdin_embed_size(broken):
    class SelfAttention(nn.Module):
        def __init__(self, embed_size, heads=4):
            super().__init__()
            self.embed_size, self.heads, self.head_dim = embed_size, heads, embed_size // heads
            self.values, self.keys, self.queries, self.fc_out = (
                nn.Linear(embed_size, embed_size) for _ in range(4)
            )

        def forward(self, x):
            n, length, _ = x.shape
            shape = (n, length, self.heads, self.head_dim)
            values, keys, queries = (
                p(x).reshape(shape) for p in (self.values, self.keys, self.queries)
            )
            energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
            size = self.embed_size if broken else self.head_dim
            attention = torch.softmax(energy / (size ** (1 / 2)), dim=3)
            out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(n, length, -1)
            return self.fc_out(out)

    class TransformerBlock(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.attention, self.norm1, self.norm2 = (
                SelfAttention(dim),
                nn.LayerNorm(dim),
                nn.LayerNorm(dim),
            )
            self.feed_forward = nn.Sequential(
                nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim)
            )
            self.dropout = nn.Dropout(0.1)

        def forward(self, x):
            x = self.dropout(self.norm1(self.attention(x) + x))
            return self.dropout(self.norm2(self.feed_forward(x) + x))

    class Encoder(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.word_embedding, self.position_embedding = (
                nn.Embedding(50, dim),
                nn.Embedding(10, dim),
            )
            self.layers = nn.ModuleList([TransformerBlock(dim) for _ in range(2)])
            self.fc = nn.Linear(dim, 50)

        def forward(self, x):
            out = self.word_embedding(x) + self.position_embedding.weight
            for layer in self.layers:
                out = layer(out)
            return self.fc(out)

    model = Encoder()
    if not broken:  # the original also drops the stream, which is another mistake
        for layer in model.layers:
            layer.dropout = nn.Identity()
    return model
