"""Third batch: masks of the wrong polarity or shape, and padding that is read."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import bug, ids, padded, pairs
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PostLayer,
    PreLayer,
    SelfAttention,
    earlier,
    feed_forward,
    image,
    merge_heads,
    softmax_attention,
    split_heads,
)

LEAK = "error or warning: padding changes the outputs of real tokens"
INVERTED = "error: the mask is inverted, tokens see only (or also) what should be hidden"


@bug(
    "mask",
    "https://github.com/lucidrains/halonet-pytorch/pull/6",
    "error or warning: the mask hides every real pixel instead of the padding at the border",
    image(16),
)
def halonet_inverted_border(broken):
    class HaloAttention(nn.Module):
        def __init__(self, dim=32, block=4, halo=1, heads=2):
            super().__init__()
            self.block, self.halo, self.heads = block, halo, heads
            self.to_q, self.to_kv = (
                nn.Linear(dim, dim, bias=False),
                nn.Linear(dim, 2 * dim, bias=False),
            )
            self.to_out = nn.Linear(dim, dim)

        def forward(self, x):  # (batch, channels, height, width)
            b, c, h, w = x.shape
            size, window = self.block, self.block + 2 * self.halo
            unfold = {"kernel_size": window, "stride": size, "padding": self.halo}
            q = F.unfold(x, size, stride=size).view(b, c, size**2, -1).permute(0, 3, 2, 1)
            kv = F.unfold(x, **unfold).view(b, c, window**2, -1).permute(0, 3, 2, 1)
            q, k, v = self.to_q(q), *self.to_kv(kv).chunk(2, -1)
            q, k, v = (
                t.flatten(0, 1).unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v)
            )
            inside = F.unfold(torch.ones(1, 1, h, w), **unfold).transpose(1, 2).bool()
            hidden = inside if broken else ~inside
            hidden = hidden.expand(b, -1, -1).reshape(-1, 1, 1, window**2)
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            scores = scores.masked_fill(hidden, -torch.finfo(x.dtype).max)
            out = self.to_out(merge_heads(scores.softmax(-1) @ v))
            out = out.view(b, -1, size**2, c).permute(0, 3, 2, 1).flatten(1, 2)
            return F.fold(out, (h, w), size, stride=size)

    class Net(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stem = nn.Conv2d(3, dim, 3, padding=1)
            self.norms = nn.ModuleList([nn.GroupNorm(1, dim) for _ in range(3)])
            self.layers = nn.ModuleList([HaloAttention(dim) for _ in range(3)])
            self.norm, self.head = nn.GroupNorm(1, dim), nn.Linear(dim, 10)

        def forward(self, picture):
            x = self.stem(picture)
            for norm, layer in zip(self.norms, self.layers, strict=True):
                x = x + layer(norm(x))
            return self.head(self.norm(x).mean((2, 3)))

    return Net()


@bug("causal mask", "https://github.com/rasbt/LLMs-from-scratch/issues/1061", INVERTED, ids(2, 12))
def llms_from_scratch_sdpa_mask(broken):
    class Attention(nn.Module):
        def __init__(self, dim=64, heads=4, context=32):
            super().__init__()
            self.heads, self.qkv, self.proj = (
                heads,
                nn.Linear(dim, 3 * dim, bias=False),
                nn.Linear(dim, dim),
            )
            mask = torch.triu(torch.ones(context, context), diagonal=1)
            self.register_buffer("mask", mask.bool())

        def forward(self, x):
            n = x.shape[1]
            q, k, v = (split_heads(t, self.heads) for t in self.qkv(x).chunk(3, -1))
            mask = self.mask[:n, :n] if broken else ~self.mask[:n, :n]
            return self.proj(merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))

    return LanguageModel([PreLayer(Attention()) for _ in range(3)])


@bug("padding", "https://github.com/lucidrains/x-transformers/issues/160", LEAK, padded)
def x_transformers_flash_mask(broken):
    class Attend(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads = heads
            self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

        def forward(self, x, hidden=None):
            q, k, v = (split_heads(t, self.heads) for t in self.to_qkv(x).chunk(3, -1))
            mask = hidden if broken else ~hidden
            return self.to_out(merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))

    class Encoder(LanguageModel):
        def masks(self, ids):
            return {"hidden": (ids == 0)[:, None, None].expand(-1, 1, ids.size(1), -1)}

    return Encoder([PreLayer(Attend()) for _ in range(3)])


@bug("padding", "https://github.com/keras-team/keras-io/pull/1046", LEAK + " of the source", pairs)
def keras_io_target_mask_for_source(broken):
    class DecoderLayer(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, self.attention_1 = heads, SelfAttention(dim, heads)
            self.q, self.kv, self.o = (
                nn.Linear(dim, dim),
                nn.Linear(dim, 2 * dim),
                nn.Linear(dim, dim),
            )
            self.dense = feed_forward(dim)
            self.norm_1, self.norm_2, self.norm_3 = (nn.LayerNorm(dim) for _ in range(3))

        def cross(self, x, memory, visible):
            q = split_heads(self.q(x), self.heads)
            k, v = (split_heads(t, self.heads) for t in self.kv(memory).chunk(2, -1))
            return self.o(merge_heads(softmax_attention(q, k, v, visible=visible)))

        def forward(self, x, memory, causal, padding):
            x = self.norm_1(x + self.attention_1(x, visible=causal))
            x = self.norm_2(x + self.cross(x, memory, padding))
            return self.norm_3(x + self.dense(x))

    class Translator(nn.Module):
        def __init__(self, dim=64):
            super().__init__()
            self.source, self.target = nn.Embedding(50, dim), nn.Embedding(50, dim)
            self.positions = nn.Embedding(32, dim)
            self.encoder = nn.ModuleList([PostLayer(SelfAttention()) for _ in range(2)])
            self.decoder = nn.ModuleList([DecoderLayer() for _ in range(2)])
            self.head = nn.Linear(dim, 50)

        def forward(self, source, target):
            table = self.positions.weight
            memory, x = self.source(source) + table[: source.size(1)], self.target(target)
            x = x + table[: target.size(1)]
            for layer in self.encoder:
                memory = layer(memory, visible=(source != 0)[:, None, None])
            causal = earlier(target.size(1))
            if broken:  # padding of the target, reduced by the causal mask
                padding = (target != 0)[:, None, None] & causal
            else:
                padding = (source != 0)[:, None, None]
            for layer in self.decoder:
                x = layer(x, memory, causal, padding)
            return self.head(x)

    return Translator()


@bug(
    "padding",
    "https://github.com/AI4Bharat/IndicBERT/issues/20",
    LEAK,
    lambda: {"input_ids": padded(), "attention_mask": (padded() != 0).long()},
)
def indicbert_mask_not_honoured(broken):
    class Model(LanguageModel):
        def forward(self, input_ids, attention_mask=None):
            x = self.embed(input_ids)
            visible = torch.ones_like(attention_mask) if broken else attention_mask
            for layer in self.layers:
                x = layer(x, visible=visible.bool()[:, None, None])
            return self.norm(x)

    model = Model([PreLayer(SelfAttention()) for _ in range(3)])
    model.head = None
    return model


@bug(
    "padding",
    "https://github.com/autoliuweijie/BERT-whitening-pytorch/issues/13",
    "warning: the mean over the sequence includes padding",
    lambda: {"input_ids": padded(), "attention_mask": (padded() != 0).long()},
)
def bert_whitening_first_last_average(broken):
    class Encoder(LanguageModel):
        def forward(self, input_ids, attention_mask):
            x, states = self.embed(input_ids), []
            for layer in self.layers:
                x = layer(x, visible=attention_mask.bool()[:, None, None])
                states.append(x)
            if broken:
                return (states[-1] + states[1]).mean(dim=1)
            real = attention_mask.unsqueeze(-1)
            return ((states[-1] + states[1]) / 2 * real).sum(1) / real.sum(1)

    model = Encoder([PostLayer(SelfAttention()) for _ in range(3)], final_norm=False)
    model.head = None
    return model


def left_padded():
    """Return ids with padding ids 0 at the start of the rows, and their mask."""
    tokens = padded().flip(1)
    return {"input_ids": tokens, "attention_mask": (tokens != 0).long()}


@bug(
    "padding",
    "https://github.com/huggingface/sentence-transformers/issues/3208",
    "error or warning: the output is read from a padding token",
    left_padded,
)
def sentence_transformers_cls_of_padding(broken):
    class Encoder(LanguageModel):
        def forward(self, input_ids, attention_mask):
            places = (attention_mask.cumsum(1) - 1).clamp(min=0)
            x = self.tokens(input_ids) + self.positions(places)
            for layer in self.layers:
                x = layer(x, visible=attention_mask.bool()[:, None, None])
            first = torch.zeros(len(x), dtype=torch.long) if broken else attention_mask.argmax(1)
            return self.norm(x)[torch.arange(len(x)), first]

    model = Encoder([PreLayer(SelfAttention()) for _ in range(3)])
    model.head = None
    return model


@bug(
    "option",
    "https://github.com/huggingface/transformers/issues/48745",
    "error or warning: is_decoder has no effect, positions see the future",
    ids(2, 12),
    is_decoder=True,
)
def roformer_is_decoder(broken, is_decoder=True):
    class RoFormer(LanguageModel):
        def masks(self, ids):
            length = ids.size(1)
            everything = torch.ones(length, length, dtype=torch.bool)
            if is_decoder and not broken:
                return {"visible": earlier(length)}
            return {"visible": everything}

    return RoFormer([PostLayer(SelfAttention()) for _ in range(3)], final_norm=False)
