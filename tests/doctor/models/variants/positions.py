"""Variants: positions that are built and have no effect, or the wrong one."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import ids
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PreLayer,
    SelfAttention,
    merge_heads,
    softmax_attention,
    split_heads,
)
from tests.doctor.models.variants.case import (
    Attention,
    WithoutPositions,
    language_model,
    variant,
)


def embedding_model(embed):
    """Return a model with another way to embed its ids."""

    class Model(LanguageModel):
        def __init__(self, layers):
            super().__init__(layers)
            self.positions = nn.Embedding(64, 64)

        def embed(self, tokens):
            return embed(self, tokens)

    return Model([PreLayer(SelfAttention()) for _ in range(2)])


@variant("ignored_positions", ids(2, 12))
def table_that_is_not_added(broken):
    def embed(model, tokens):
        x = model.tokens(tokens)
        return x if broken else x + model.positions.weight[: tokens.size(1)]

    return embedding_model(embed)


@variant("ignored_positions", ids(2, 12))
def table_that_the_ids_read(broken):
    def embed(model, tokens):
        places = tokens if broken else torch.arange(tokens.size(1))
        return model.tokens(tokens) + model.positions(places)

    return embedding_model(embed)


@variant("ignored_positions", ids(2, 12))
def positions_of_zeros(broken):
    def embed(model, tokens):
        places = torch.zeros_like(tokens)
        places = places if broken else places + torch.arange(tokens.size(1))
        return model.tokens(tokens) + model.positions(places)

    return embedding_model(embed)


def rotate(x, axis=-2):
    """Rotate the halves of the features by the index along an axis."""
    size, count = x.size(-1), x.size(axis)
    angles = torch.arange(count)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
    shape = [1] * x.dim()
    shape[axis], shape[-1] = count, size
    angles = torch.cat([angles, angles], -1).view(shape)
    turned = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1)
    return x * angles.cos() + turned * angles.sin()


def rotary_model(turn):
    """Return a causal model whose queries and keys are turned by `turn(q, k)`."""

    class Rotary(Attention):
        def attend_heads(self, q, k, v, visible):
            return softmax_attention(*turn(q, k), v, visible=visible)

    return language_model(Rotary, model=WithoutPositions, causal=True)


@variant("ignored_positions", ids(2, 12))
def only_queries_are_rotated(broken):
    return rotary_model(lambda q, k: (rotate(q), k if broken else rotate(k)))


@variant("ignored_positions", ids(2, 12))
def examples_are_counted(broken):
    axis = 0 if broken else -2
    return rotary_model(lambda q, k: (rotate(q, axis), rotate(k, axis)))


@variant("ignored_positions", ids(2, 12))
def complex_rotation_of_heads(broken):
    class Complex(SelfAttention):
        def rotary(self, x):  # expects (examples, tokens, heads, features)
            size, count = x.size(-1), x.size(1)
            angles = torch.arange(count)[:, None] / 10000 ** (torch.arange(0, size, 2) / size)
            factors = torch.polar(torch.ones_like(angles), angles)[None, :, None]
            pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
            return torch.view_as_real(pairs * factors).flatten(-2)

        def forward(self, x, visible=None):
            q, k, v = (
                p(x).unflatten(-1, (self.heads, -1))
                for p in (self.q_proj, self.k_proj, self.v_proj)
            )
            if broken:
                q, k = (self.rotary(t.transpose(1, 2)) for t in (q, k))
            else:
                q, k = (self.rotary(t).transpose(1, 2) for t in (q, k))
            out = softmax_attention(q, k, v.transpose(1, 2), visible=visible)
            return self.o_proj(merge_heads(out))

    return language_model(Complex, model=WithoutPositions, causal=True)


@variant("inverted_bias", ids(2, 12))
def alibi_with_the_wrong_sign(broken):
    class Alibi(Attention):
        def attend_heads(self, q, k, v, visible):
            places = torch.arange(q.size(-2))
            distance = (places[:, None] - places).abs()
            slopes = 2.0 ** -(torch.arange(self.heads) + 1.0)
            bias = slopes[:, None, None] * (distance if broken else -distance)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None])

    return language_model(Alibi, model=WithoutPositions)


@variant("unused_weights", ids(2, 12))
def relative_bias_that_is_dropped(broken):
    class Relative(SelfAttention):
        def __init__(self):
            super().__init__()
            self.bias = nn.Embedding(31, 4)

        def forward(self, x, visible=None):
            places = torch.arange(x.size(1))
            distance = (places[:, None] - places).clamp(-15, 15) + 15
            bias = self.bias(distance).permute(2, 0, 1)
            q, k, v = (
                split_heads(p(x), self.heads) for p in (self.q_proj, self.k_proj, self.v_proj)
            )
            out = softmax_attention(q, k, v, bias=None if broken else bias)
            return self.o_proj(merge_heads(out))

    return language_model(Relative, model=WithoutPositions)
