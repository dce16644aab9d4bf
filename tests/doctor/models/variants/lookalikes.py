"""Healthy models that resemble the variants."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import ids, stream
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PreLayer,
    SelfAttention,
    feed_forward,
    merge_heads,
    softmax_attention,
    split_heads,
)
from tests.doctor.models.variants.case import (
    Attention,
    WithoutPositions,
    language_model,
    lookalike,
    replace_norms,
)
from tests.doctor.models.variants.masks import Translator, hide_later


def continuous(make_attention):
    """Return a model of continuous sequences."""
    layers = [PreLayer(make_attention()) for _ in range(2)]
    return nn.Sequential(*layers, nn.LayerNorm(64), nn.Linear(64, 5))


@lookalike(ids(2, 12))
def output_gate():
    class Gated(SelfAttention):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(64, 64)
            self.merged, self.o_proj = self.o_proj, nn.Identity()

        def forward(self, x, visible=None):
            return self.merged(super().forward(x, visible=visible) * self.gate(x).sigmoid())

    return language_model(Gated, causal=True)


@lookalike(stream(2, 12, 64))
def values_of_the_token_itself():
    class WithValue(Attention):
        def attend_heads(self, q, k, v, visible):
            return softmax_attention(q, k, v) + 0.5 * v

    return continuous(WithValue)


@lookalike(ids(2, 12))
def talking_heads():
    class Talking(Attention):
        def __init__(self):
            super().__init__()
            self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 4)

        def attend_heads(self, q, k, v, visible):
            scores = q @ k.transpose(-2, -1) / 4
            scores = self.before(scores.movedim(1, -1)).movedim(-1, 1)
            return self.after(scores.softmax(-1).movedim(1, -1)).movedim(-1, 1) @ v

    return language_model(Talking)


@lookalike(stream(2, 12, 64))
def attention_between_channels():
    class Channels(SelfAttention):
        def forward(self, x):
            q, k, v = (
                split_heads(p(x), self.heads).mT for p in (self.q_proj, self.k_proj, self.v_proj)
            )
            weights = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * 4).softmax(-1)
            return self.o_proj((weights @ v).permute(0, 3, 1, 2).flatten(2))

    return continuous(Channels)


@lookalike(stream(2, 12, 64))
def windows_of_tokens():
    class Windows(SelfAttention):
        def forward(self, x):
            return super().forward(x.reshape(-1, 4, 64)).view(x.shape)

    return continuous(Windows)


@lookalike(ids(2, 12))
def convolution_before_attention():
    class Convolved(SelfAttention):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv1d(64, 64, 3, padding=1, groups=64)

        def forward(self, x, visible=None):
            return super().forward(self.convolution(x.mT).mT)

    return language_model(Convolved)


@lookalike(ids(2, 12))
def grouped_queries_of_torch():
    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(64, size) for size in (64, 32, 32))
            self.o = nn.Linear(64, 64)

        def forward(self, x, visible=None):
            q, k, v = (split_heads(p(x), h) for p, h in ((self.q, 4), (self.k, 2), (self.v, 2)))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.o(merge_heads(out))

    return language_model(Grouped)


@lookalike(ids(2, 12))
def matrices_of_single_heads():
    class Headwise(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrices = nn.ParameterList(torch.randn(4, 16, 16) / 4 for _ in range(3))
            self.o = nn.Linear(64, 64)

        def forward(self, x, visible=None):
            heads = x.unflatten(-1, (4, 16))
            q, k, v = (torch.einsum("bthd,hde->bhte", heads, m) for m in self.matrices)
            return self.o(merge_heads(softmax_attention(q, k, v)))

    return language_model(Headwise)


@lookalike(ids(2, 12))
def causal_without_positions():
    return language_model(SelfAttention, model=WithoutPositions, causal=True)


@lookalike(ids(2, 12))
def set_of_ids():
    return language_model(SelfAttention, model=WithoutPositions)


@lookalike(ids(2, 12))
def two_embeddings_and_positions():
    class Model(LanguageModel):
        def __init__(self, layers):
            super().__init__(layers)
            self.hashed = nn.Embedding(50, 64)

        def embed(self, tokens):
            return super().embed(tokens) + self.hashed(tokens)

    return Model([PreLayer(SelfAttention()) for _ in range(2)])


@lookalike(ids(2, 12))
def distance_is_subtracted():
    class Alibi(Attention):
        def attend_heads(self, q, k, v, visible):
            places = torch.arange(q.size(-2))
            distance = (places[:, None] - places).abs().float()
            slopes = 2.0 ** -(torch.arange(self.heads) + 1.0)
            scores = q @ k.transpose(-2, -1) / 4 - slopes[:, None, None] * distance
            return scores.masked_fill(~visible, -1e9).softmax(-1) @ v

    return language_model(Alibi, model=WithoutPositions, causal=True)


@lookalike(ids(2, 12))
def mup():
    class Scaled(Attention):
        def attend_heads(self, q, k, v, visible):
            return softmax_attention(q, k, v, scale=1 / q.size(-1), visible=visible)

    class Model(LanguageModel):
        def forward(self, tokens):
            return super().forward(tokens) * 0.25

    return language_model(Scaled, model=Model, causal=True)


@lookalike(ids(2, 12))
def factor_on_queries_and_keys():
    class Halved(Attention):
        def attend_heads(self, q, k, v, visible):
            factor = q.size(-1) ** -0.25
            return softmax_attention(q * factor, k * factor, v, scale=1.0)

    return language_model(Halved)


@lookalike(ids(2, 12))
def norms_of_queries_and_keys_with_another_factor():
    class Normed(Attention):
        def __init__(self):
            super().__init__()
            self.q_norm, self.k_norm = nn.RMSNorm(16), nn.RMSNorm(16)

        def attend_heads(self, q, k, v, visible):
            q, k = self.q_norm(q), self.k_norm(k)
            return F.scaled_dot_product_attention(q, k, v, scale=1 / 12)

    return language_model(Normed)


@lookalike(lambda: (torch.randint(1, 50, (2, 11)), torch.randint(1, 50, (2, 11))))
def streaming_translation():
    return Translator(hide_later, causal_source=True)


@lookalike(ids(2, 12))
def low_rank_path_that_starts_closed():
    class LowRank(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x)) * 2

    model = language_model(SelfAttention)
    for layer in model.layers:
        layer.attention.v_proj = LowRank(layer.attention.v_proj)
    return model


@lookalike(ids(2, 12))
def norm_of_the_annotated_transformer():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain, self.bias = nn.Parameter(torch.ones(64)), nn.Parameter(torch.zeros(64))

        def forward(self, x):
            centered = x - x.mean(-1, keepdim=True)
            return self.gain * centered / (x.std(-1, keepdim=True) + 1e-6) + self.bias

    return replace_norms(language_model(SelfAttention), Norm)


@lookalike(ids(2, 12))
def gains_of_zero_at_the_end_of_branches():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.mlp = SelfAttention(), feed_forward()
            self.norm1, self.norm2 = nn.LayerNorm(64), nn.LayerNorm(64)
            nn.init.zeros_(self.norm1.weight)
            nn.init.zeros_(self.norm2.weight)

        def forward(self, x):
            x = x + self.norm1(self.attention(x))
            return x + self.norm2(self.mlp(x))

    return LanguageModel([Layer() for _ in range(2)])
