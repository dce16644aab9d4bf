"""Options of a builder that have no effect."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.historic.cases import (
    LAYERS,
    VOCAB,
    Attention,
    Classifier,
    D,
    PostLayer,
    PreLayer,
    feed_forward,
    ids,
    join_heads,
    register,
    split_heads,
    vectors,
)

CASES = []
RULE = "ineffective_option"


@register(CASES, "k2-fsa/snowfall#184 (argument)", RULE, ids, {"normalize_before": True})
def normalize_before_is_not_passed(bug):
    def build(normalize_before=True):
        class Layer(nn.Module):
            def __init__(self, before=True):
                super().__init__()
                self.inner = PreLayer() if before else PostLayer()

            def forward(self, x):
                return self.inner(x)

        make = Layer if bug else lambda: Layer(before=normalize_before)
        return Classifier([make() for _ in range(2)], nn.LayerNorm(D))

    return build


@register(CASES, "NVlabs/Forecasting-Model-Search#6", RULE, vectors, {"activation": "relu"})
def activation_is_hard_coded(bug):
    class FeedForward(nn.Module):
        def __init__(self, activation):
            super().__init__()
            self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
            table = {"relu": nn.ReLU, "gelu": nn.GELU}
            self.activation = nn.ReLU() if bug else table[activation]()
            self.norm = nn.LayerNorm(D)

        def forward(self, x):
            return x + self.down(self.activation(self.up(self.norm(x))))

    def build(activation="relu"):
        return nn.Sequential(*[FeedForward(activation) for _ in range(3)], nn.LayerNorm(D))

    return build


@register(CASES, "zhouhaoyi/Informer2020#97", RULE, ids, {"attention_dropout": 0.1})
def attention_dropout_is_never_applied(bug):
    class Dropped(Attention):
        def __init__(self, rate):
            super().__init__()
            self.dropout = nn.Dropout(rate)

        def forward(self, x):
            q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
            weights = (q @ k.mT / 8**0.5).softmax(-1)
            weights = weights if bug else self.dropout(weights)
            return self.o(join_heads(weights @ v))

    def build(attention_dropout=0.1):
        layers = [PreLayer(attention=lambda: Dropped(attention_dropout)) for _ in range(2)]
        return Classifier(layers, nn.LayerNorm(D))

    return build


@register(
    CASES, "lucidrains/x-transformers#352", RULE, ids, {"qk_norm": True, "qk_norm_dim_scale": True}
)
def scales_are_built_but_not_used(bug):
    class Cosine(Attention):
        def __init__(self, qk_norm, dim_scale):
            super().__init__()
            self.qk_norm = qk_norm
            self.scales = nn.ParameterList(torch.ones(3, 1, 8) for _ in range(2 * dim_scale))

        def forward(self, x):
            q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
            if self.qk_norm:
                q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
                if len(self.scales) and not bug:
                    q, k = q * self.scales[0], k * self.scales[1]
            scores = q @ k.mT * (10.0 if self.qk_norm else 8**-0.5)
            return self.o(join_heads(scores.softmax(-1) @ v))

    def build(qk_norm=True, qk_norm_dim_scale=True):
        layers = [PreLayer(attention=lambda: Cosine(qk_norm, qk_norm_dim_scale)) for _ in range(2)]
        return Classifier(layers, nn.LayerNorm(D))

    return build


@register(CASES, "huggingface/transformers#21336", RULE, ids, {"layer_norm_eps": 1e-5, "layers": 2})
def layer_norm_eps_is_not_passed(bug):
    def build(layer_norm_eps=1e-5, layers=2):
        def norm(dim):
            return nn.LayerNorm(dim) if bug else nn.LayerNorm(dim, eps=layer_norm_eps)

        return Classifier([PostLayer(norm=norm) for _ in range(layers)])

    return build


@register(CASES, "huggingface/pytorch-image-models#2605", RULE, vectors, {"init_values": 1e-5})
def layer_scale_ignores_init_values(bug):
    class Scaled(nn.Module):
        def __init__(self, inner, start):
            super().__init__()
            self.norm, self.inner = nn.LayerNorm(D), inner
            self.gamma = nn.Parameter(torch.full((D,), start))
            if bug:
                nn.init.ones_(self.gamma)

        def forward(self, x):
            return x + self.gamma * self.inner(self.norm(x))

    def build(init_values=1e-5):
        parts = [f() for _ in range(2) for f in (Attention, feed_forward)]
        return nn.Sequential(*[Scaled(part, init_values) for part in parts], nn.LayerNorm(D))

    return build


@register(CASES, "lucidrains/x-transformers#175", RULE, vectors, {"dropout": 0.0, "depth": 2})
def embedding_dropout_is_unused(bug):
    class Wrapper(nn.Module):
        def __init__(self, depth, dropout=0.0):
            super().__init__()
            self.patch = nn.Linear(D, D)
            self.drop = nn.Identity() if bug else nn.Dropout(dropout)
            self.layers = nn.Sequential(*[PreLayer() for _ in range(depth)], nn.LayerNorm(D))

        def forward(self, x):
            return self.layers(self.drop(self.patch(x)))

    return lambda dropout=0.0, depth=2: Wrapper(depth, dropout)


@register(CASES, "SHI-Labs/Compact-Transformers#7", RULE, vectors, {"stochastic_depth": 0.2})
def misspelled_keyword_is_swallowed(bug):
    class Dropped(nn.Module):
        def __init__(self, inner, rate):
            super().__init__()
            self.norm, self.inner, self.rate = nn.LayerNorm(D), inner, rate

        def forward(self, x):
            y = self.inner(self.norm(x))
            if self.training and self.rate:
                keep = 1 - self.rate
                y = y * (torch.rand(len(x), 1, 1) + keep).floor() / keep
            return x + y

    class Encoder(nn.Sequential):
        def __init__(self, stochastic_depth_rate=0.1, **unused):
            parts = [f() for _ in range(2) for f in (Attention, feed_forward)]
            super().__init__(*[Dropped(p, stochastic_depth_rate) for p in parts], nn.LayerNorm(D))

    def build(stochastic_depth=0.2):
        name = "stochastic_depth" if bug else "stochastic_depth_rate"
        return Encoder(**{name: stochastic_depth})

    return build


@register(CASES, "huggingface/transformers#47458", RULE, ids, {"scale_residual_init": True})
def residual_init_matches_no_name(bug):
    def build(scale_residual_init=True):
        model = Classifier([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
            ends = (
                name in ("o.weight", "2.weight") if bug else name.endswith(("o.weight", "2.weight"))
            )
            if scale_residual_init and ends:
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * LAYERS))
        return model

    return build


@register(CASES, "bytedance/lightseq#231", RULE, ids, {"activation_fn": "gelu", "hidden": 48})
def activation_is_not_in_the_layer_config(bug):
    class Layer(nn.Module):
        def __init__(self, hidden, activation_fn="relu"):
            super().__init__()
            self.n1, self.n2, self.attention = nn.LayerNorm(D), nn.LayerNorm(D), Attention()
            self.up, self.down = nn.Linear(D, hidden), nn.Linear(hidden, D)
            self.activation = getattr(F, activation_fn)

        def forward(self, x):
            x = self.n1(x + self.attention(x))
            return self.n2(x + self.down(self.activation(self.up(x))))

    def build(activation_fn="gelu", hidden=48):
        named = {} if bug else {"activation_fn": activation_fn}
        return Classifier([Layer(hidden, **named) for _ in range(2)])

    return build


@register(CASES, "espnet/espnet#3183", RULE, vectors, {"dim": -1, "eps": 1e-5})
def norm_ignores_its_axis(bug):
    class AxisNorm(nn.LayerNorm):
        def __init__(self, dim, eps):
            super().__init__(D, eps=eps)
            self.dim = dim

        def forward(self, x):
            axis = -1 if bug else self.dim
            return super().forward(x.transpose(axis, -1)).transpose(axis, -1)

    def build(dim=-1, eps=1e-5):
        return nn.Sequential(
            PreLayer(norm=lambda _: AxisNorm(dim, eps)), PreLayer(), nn.LayerNorm(D)
        )

    return build


@register(CASES, "youngwanLEE/MPViT#12", RULE, ids, {"drop_path_rate": 0.1, "vocab": VOCAB})
def drop_path_rates_are_not_passed(bug):
    class Block(PreLayer):
        def __init__(self, rate=0.0):
            super().__init__()
            self.drop = nn.Dropout(rate)

        def forward(self, x):
            x = x + self.drop(self.attention(self.n1(x)))
            return x + self.drop(self.ff(self.n2(x)))

    def build(drop_path_rate=0.1, vocab=VOCAB):
        rates = torch.linspace(0, drop_path_rate, 3).tolist()
        layers = [Block() if bug else Block(rate) for rate in rates]
        return Classifier(layers, nn.LayerNorm(D))

    return build
