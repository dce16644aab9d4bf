"""Variants: heads that are split, merged or projected wrongly, and factors of the scores."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import ids
from tests.doctor.models.review.third_bugs.common import (
    SelfAttention,
    feed_forward,
    image,
    merge_heads,
    softmax_attention,
    split_heads,
)
from tests.doctor.models.variants.case import Attention, language_model, variant


@variant("scrambled_heads", ids(2, 12))
def heads_split_and_merged_by_views(broken):
    class Viewed(SelfAttention):
        def forward(self, x, visible=None):
            shape = (len(x), self.heads, x.size(1), -1)
            projected = [p(x) for p in (self.q_proj, self.k_proj, self.v_proj)]
            if broken:
                out = softmax_attention(*(t.view(shape) for t in projected)).reshape(x.shape)
            else:
                out = merge_heads(
                    softmax_attention(*(split_heads(t, self.heads) for t in projected))
                )
            return self.o_proj(out)

    return language_model(Viewed)


@variant("scrambled_heads", ids(2, 12))
def attention_between_heads(broken):
    class Untransposed(SelfAttention):
        def forward(self, x, visible=None):
            axes = (1, 1) if broken else (1, 2)
            q, k, v = (
                p(x).unflatten(-1, (self.heads, -1)).transpose(*axes)
                for p in (self.q_proj, self.k_proj, self.v_proj)
            )
            out = F.scaled_dot_product_attention(q, k, v).transpose(*axes)
            return self.o_proj(out.reshape(x.shape))

    return language_model(Untransposed)


class CrossAttention(nn.Module):
    """Attention of one stream to another."""

    def __init__(self, merge=merge_heads, scale=None, heads=4):
        super().__init__()
        self.merge, self.scale, self.heads = merge, scale, heads
        self.q, self.k, self.v, self.o = (nn.Linear(64, 64) for _ in range(4))

    def forward(self, x, memory):
        q, k, v = (
            split_heads(p(y), self.heads)
            for p, y in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        out = softmax_attention(q, k, v, scale=self.scale)
        return self.o(out.reshape(x.shape) if self.merge is None else self.merge(out))


class Reader(nn.Module):
    """Pre-LN layers that attend to a second input."""

    def __init__(self, make_cross):
        super().__init__()
        self.cross = nn.ModuleList([make_cross() for _ in range(2)])
        self.feeds = nn.ModuleList([feed_forward() for _ in range(2)])
        self.norms = nn.ModuleList([nn.LayerNorm(64) for _ in range(5)])
        self.head = nn.Linear(64, 5)

    def forward(self, x, memory):
        for i, (cross, feed) in enumerate(zip(self.cross, self.feeds, strict=True)):
            x = x + cross(self.norms[2 * i](x), memory)
            x = x + feed(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x))


def two_streams():
    """Return a stream and what it attends to."""
    return torch.randn(2, 9, 64), torch.randn(2, 13, 64)


@variant("scrambled_heads", two_streams)
def cross_attention_merged_by_a_view(broken):
    return Reader(lambda: CrossAttention(None if broken else merge_heads))


@variant("unscaled_attention", two_streams)
def cross_attention_without_a_factor(broken):
    return Reader(lambda: CrossAttention(scale=1.0 if broken else None, heads=1))


@variant("scrambled_heads", image())
def pixels_merged_by_a_view(broken):
    class Pixels(nn.Module):
        def __init__(self, dim=32, heads=4):
            super().__init__()
            self.heads = heads
            self.qkv, self.out = nn.Conv2d(dim, 3 * dim, 1), nn.Conv2d(dim, dim, 1)

        def forward(self, x):
            q, k, v = (
                t.flatten(2).unflatten(1, (self.heads, -1)).mT for t in self.qkv(x).chunk(3, 1)
            )
            values = softmax_attention(q, k, v)  # (examples, heads, pixels, features)
            return self.out((values if broken else values.mT).reshape(x.shape))

    class Net(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stem, self.head = nn.Conv2d(3, dim, 4, 4), nn.Linear(dim, 5)
            self.layers = nn.ModuleList([Pixels(dim) for _ in range(2)])
            self.norms = nn.ModuleList([nn.GroupNorm(1, dim) for _ in range(3)])

        def forward(self, picture):
            x = self.stem(picture)
            for norm, layer in zip(self.norms, self.layers, strict=False):
                x = x + layer(norm(x))
            return self.head(self.norms[-1](x).mean((2, 3)))

    return Net()


@variant("narrow_projections", ids(2, 12))
def heads_split_before_the_projections(broken):
    class Narrow(nn.Module):
        def __init__(self, dim=64, heads=4):
            super().__init__()
            self.heads, size = heads, dim // heads if broken else dim
            self.q, self.k, self.v = (nn.Linear(size, size) for _ in range(3))
            self.o = nn.Linear(dim, dim)

        def project(self, matrix, x):
            if broken:
                return matrix(x.unflatten(-1, (self.heads, -1))).transpose(1, 2)
            return split_heads(matrix(x), self.heads)

        def forward(self, x, visible=None):
            q, k, v = (self.project(p, x) for p in (self.q, self.k, self.v))
            return self.o(merge_heads(softmax_attention(q, k, v)))

    return language_model(Narrow)


def scaled_by(factor):
    """Return an attention with a factor that may depend on queries and keys."""

    class Scaled(Attention):
        def attend_heads(self, q, k, v, visible):
            return softmax_attention(q, k, v, scale=factor(q, k), visible=visible)

    return Scaled


@variant("wrong_attention_scale", ids(2, 12))
def factor_of_the_number_of_tokens(broken):
    return language_model(scaled_by(lambda q, k: k.size(-2 if broken else -1) ** -0.5))


@variant("wrong_attention_scale", ids(2, 12))
def factor_of_the_width_with_as_many_heads_as_features(broken):
    class Scaled(Attention):
        def __init__(self):
            super().__init__(64, 8)

        def attend_heads(self, q, k, v, visible):
            return softmax_attention(q, k, v, scale=(64 if broken else 8) ** -0.5)

    return language_model(Scaled)


@variant("wrong_attention_scale", ids(2, 12))
def factor_of_unsplit_heads(broken):
    class Single(SelfAttention):
        def forward(self, x, visible=None):
            q, k, v = (p(x) for p in (self.q_proj, self.k_proj, self.v_proj))
            size = x.size(-1) // (self.heads if broken else 1)
            return self.o_proj(softmax_attention(q, k, v, scale=size**-0.5))

    return language_model(Single)


@variant("wrong_attention_scale", ids(2, 12))
def factor_of_all_grouped_keys(broken):
    class Grouped(nn.Module):
        def __init__(self, dim=64, heads=4, groups=2):
            super().__init__()
            self.heads, self.groups, size = heads, groups, dim // heads
            self.q, self.k, self.v = (nn.Linear(dim, n * size) for n in (heads, groups, groups))
            self.o = nn.Linear(dim, dim)

        def forward(self, x, visible=None):
            q = split_heads(self.q(x), self.heads)
            k, v = (
                split_heads(p(x), self.groups).repeat_interleave(2, 1) for p in (self.k, self.v)
            )
            size = k.size(-1) * (self.groups if broken else 1)
            scores = q @ k.transpose(-2, -1) / math.sqrt(size)
            return self.o(merge_heads(scores.masked_fill(~visible, -1e9).softmax(-1) @ v))

    return language_model(Grouped, causal=True)


@variant("wrong_softmax_axis", ids(2, 12))
def softmax_without_an_axis(broken):
    class Implicit(Attention):
        def attend_heads(self, q, k, v, visible):
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            return F.softmax(scores, dim=None if broken else -1) @ v

    return language_model(Implicit)


@variant("double_softmax", ids(2, 12))
def softmax_of_a_softmax(broken):
    class Twice(Attention):
        def attend_heads(self, q, k, v, visible):
            weights = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).softmax(-1)
            return (weights.softmax(-1) if broken else weights) @ v

    return language_model(Twice)
