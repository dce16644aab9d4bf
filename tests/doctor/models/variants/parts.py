"""Variants: initial values of scales and adapters, rates of dropout, and sizes without effect."""

import torch
from torch import nn

from tests.doctor.models.review.case import ids
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PreLayer,
    SelfAttention,
    feed_forward,
    merge_heads,
    softmax_attention,
    split_heads,
)
from tests.doctor.models.variants.case import language_model, replace_norms, variant


@variant("scale_without_init", ids(2, 12))
def random_layer_scales(broken):
    class Scaled(PreLayer):
        def __init__(self):
            super().__init__(SelfAttention())
            start = torch.randn if broken else lambda size: torch.full((size,), 1e-4)
            self.scale1, self.scale2 = nn.Parameter(start(64)), nn.Parameter(start(64))

        def forward(self, x, **masks):
            x = x + self.scale1 * self.attention(self.norm1(x))
            return x + self.scale2 * self.mlp(self.norm2(x))

    return LanguageModel([Scaled() for _ in range(3)])


@variant("scale_without_init", ids(2, 12))
def layer_scales_of_the_skip(broken):
    class Scaled(PreLayer):
        def __init__(self):
            super().__init__(SelfAttention())
            self.scale1, self.scale2 = (nn.Parameter(torch.full((64,), 0.01)) for _ in range(2))

        def add(self, x, branch, scale):
            return scale * x + branch if broken else x + scale * branch

        def forward(self, x, **masks):
            x = self.add(x, self.attention(self.norm1(x)), self.scale1)
            return self.add(x, self.mlp(self.norm2(x)), self.scale2)

    return LanguageModel([Scaled() for _ in range(3)])


@variant("scale_without_init", ids(2, 12))
def low_rank_path_that_starts_open(broken):
    class LowRank(nn.Module):
        def __init__(self, base, rank=4):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(rank, 64) * 0.1)
            self.up = nn.Parameter(torch.randn(64, rank) * (0.1 if broken else 0.0))

        def forward(self, x):
            return self.base(x) + x @ self.down.mT @ self.up.mT

    model = language_model(SelfAttention)
    for layer in model.layers:
        layer.attention.v_proj = LowRank(layer.attention.v_proj)
    return model


@variant("high_dropout", ids(2, 12))
def share_that_is_kept_as_rate(broken):
    model = language_model(SelfAttention)
    for layer in model.layers:
        layer.mlp = nn.Sequential(*feed_forward(), nn.Dropout(0.9 if broken else 0.1))
    return model


@variant("ineffective_option", ids(2, 12), num_heads=4)
def number_of_heads_is_fixed(broken, num_heads=4):
    return language_model(lambda: SelfAttention(64, 8 if broken else num_heads))


@variant("ineffective_option", ids(2, 12), max_length=32)
def length_is_fixed(broken, max_length=32):
    model = language_model(SelfAttention)
    model.positions = nn.Embedding(64 if broken else max_length, 64)
    return model


@variant("doubled_skip", ids(2, 12))
def layer_added_to_its_input(broken):
    class Model(LanguageModel):
        def forward(self, tokens):
            x = self.embed(tokens)
            for layer in self.layers:
                x = x + layer(x) if broken else layer(x)
            return self.head(self.norm(x))

    return language_model(SelfAttention, layers=3, model=Model)


@variant("unused_weights", ids(2, 12))
def keys_projected_for_values(broken):
    class Mistyped(SelfAttention):
        def forward(self, x, visible=None):
            value = self.k_proj if broken else self.v_proj
            q, k, v = (split_heads(p(x), self.heads) for p in (self.q_proj, self.k_proj, value))
            return self.o_proj(merge_heads(softmax_attention(q, k, v)))

    return language_model(Mistyped)


@variant("detached_layers", ids(2, 12))
def positions_read_as_data(broken):
    class Model(LanguageModel):
        def embed(self, tokens):
            table = self.positions.weight
            return self.tokens(tokens) + (table.data if broken else table)[: tokens.size(1)]

    return language_model(SelfAttention, model=Model)


@variant("ineffective_option", ids(2, 12), eps=1e-6)
def epsilon_is_not_passed_to_the_final_norm(broken, eps=1e-6):
    model = replace_norms(language_model(SelfAttention), lambda: nn.LayerNorm(64, eps=eps))
    model.norm = nn.LayerNorm(64) if broken else model.norm
    return model
