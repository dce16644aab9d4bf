"""Variants of historic bugs that no case covers, and healthy models beside them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import addnorm
from tests.doctor.models.historic.cases import (
    LENGTH,
    Attention,
    Classifier,
    D,
    PreLayer,
    feed_forward,
    ids,
    join_heads,
    split_heads,
    vectors,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def found(model, example, rule):
    report = addnorm.doctor(model, example, rules=rule.split("|"))
    return {finding.severity for finding in report.findings}


# Doubled norms


class WithHead(nn.Module):
    def __init__(self, select, *head):
        super().__init__()
        self.body = nn.Sequential(PreLayer(), PreLayer(), nn.LayerNorm(D))
        self.select, self.head = select, nn.Sequential(*head, nn.Linear(D, 3))

    def forward(self, x):
        return self.head(self.select(self.body(x)))


@pytest.mark.parametrize(
    "select",
    [
        lambda x: x,
        lambda x: x[:, 0],
        lambda x: x[torch.arange(len(x)), -1],
        lambda x: x.amax(1),
        lambda x: F.adaptive_avg_pool1d(x.mT, 1).squeeze(-1),
    ],
    ids=["all", "first", "gather", "max", "pooling"],
)
def test_norm_in_the_head_after_a_final_norm_is_found(select):
    second = WithHead(select, nn.Dropout(0.1), nn.RMSNorm(D, eps=1e-6))
    assert found(second, vectors(), "double_norm") == {"warning"}
    assert found(WithHead(select), vectors(), "double_norm") == set()
    dense = WithHead(select, nn.Linear(D, D), nn.GELU(), nn.LayerNorm(D))
    assert found(dense, vectors(), "double_norm") == set()


def test_norm_of_merged_tokens_is_no_repetition():
    class Merged(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(PreLayer(), PreLayer(), nn.LayerNorm(D))
            self.norm, self.head = nn.LayerNorm(2 * D), nn.Linear(2 * D, D)

        def forward(self, x):
            return self.head(self.norm(self.body(x).reshape(len(x), -1, 2 * D)))

    assert found(Merged(), torch.randn(2, 8, D), "double_norm") == set()


# Norms over the wrong axis


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("axis", "expected"), [(1, {"error"}), (2, {"error"}), (-1, set())])
def test_norms_of_queries_and_keys_must_reduce_over_features(axis, expected, fused):
    class Cosine(Attention):
        def forward(self, x):
            q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
            q, k = F.normalize(q, dim=axis), F.normalize(k, dim=axis)
            if fused:
                return self.o(join_heads(F.scaled_dot_product_attention(q, k, v)))
            return self.o(join_heads((10 * q @ k.mT).softmax(-1) @ v))

    model = Classifier([PreLayer(attention=Cosine) for _ in range(2)], nn.LayerNorm(D))
    assert found(model, ids(), "wrong_axis") == expected


@pytest.mark.parametrize(("channels", "expected"), [(LENGTH, {"error"}), (D, set())])
def test_channels_of_a_group_norm_must_be_features(channels, expected):
    class Group(nn.Module):
        def __init__(self, _):
            super().__init__()
            self.norm = nn.GroupNorm(1, channels)

        def forward(self, x):
            return self.norm(x) if channels == LENGTH else self.norm(x.mT).mT

    model = Classifier([PreLayer(norm=Group) for _ in range(2)], nn.LayerNorm(D))
    assert found(model, ids(), "wrong_axis") == expected


# Epsilons


@pytest.mark.parametrize(
    ("dtype", "eps", "expected"),
    [
        (torch.float16, 1e-12, {"warning"}),
        (torch.float16, 1e-6, set()),
        (torch.bfloat16, 1e-12, set()),
        (torch.float32, 1e-12, set()),
    ],
)
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_eps_of_built_in_norms_must_exist_in_their_dtype(norm, dtype, eps, expected):
    layers = [PreLayer(norm=lambda d: norm(d, eps=eps)) for _ in range(2)]
    model = Classifier(layers, nn.LayerNorm(D)).to(dtype)
    assert found(model, ids(), "eps_too_small") == expected


class ScaleNorm(nn.Module):
    def __init__(self, start, least):
        super().__init__()
        self.g, self.least = nn.Parameter(torch.tensor([start])), least

    def forward(self, x):
        size = x.norm(dim=-1, keepdim=True)
        return self.g * x / (size.clamp(min=self.least) if self.least else size)


@pytest.mark.parametrize(("least", "expected"), [(0, {"error"}), (1e-5, set())])
def test_unit_norm_of_the_stream_needs_an_epsilon(least, expected):
    layers = [PreLayer(norm=lambda _: ScaleNorm(D**0.5, least)) for _ in range(2)]
    assert found(Classifier(layers, nn.LayerNorm(D)), ids(), "eps_too_small") == expected


# Initialization


class Scaled(nn.Module):
    def __init__(self, inner, start, norm=False):
        super().__init__()
        self.inner, self.norm = inner, nn.LayerNorm(D) if norm else nn.Identity()
        self.scale = None if start is None else nn.Parameter(torch.tensor(start))

    def forward(self, x):
        y = self.inner(self.norm(x))
        return x + (y if self.scale is None else self.scale * y)


def parts():
    return [f() for _ in range(3) for f in (Attention, feed_forward)]


@pytest.mark.parametrize(
    ("start", "norm", "expected"),
    [
        (1.0, False, {"warning"}),
        (1.0, True, {"info"}),
        (0.0, False, set()),
        (0.2, False, set()),
        (0.1, True, set()),
    ],
)
def test_learned_scales_of_branches_must_start_small(start, norm, expected):
    model = Classifier([Scaled(part, start, norm) for part in parts()], nn.LayerNorm(D))
    assert found(model, ids(), "scale_without_init") == expected


@pytest.mark.parametrize(("gain", "expected"), [(1.0, {"info"}), (0.4, set())])
def test_norm_free_transformer_needs_small_weights(gain, expected):
    model = Classifier([Scaled(part, None) for part in parts()])
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.xavier_normal_(weight, gain=gain)
    assert found(model, ids(), "scale_without_init") == expected


@pytest.mark.parametrize(
    ("scaled", "expected"),
    [(("ff.2.weight",), {"warning"}), (("ff.2.weight", "o.weight"), set()), (("none",), set())],
    ids=["feed-forward only", "all", "none"],
)
def test_scaled_init_must_apply_to_all_branches(scaled, expected):
    model = Classifier([PreLayer() for _ in range(6)], nn.LayerNorm(D))
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            size = math.sqrt(12) if name.endswith(scaled) else 1
            nn.init.normal_(weight, std=0.02 / size)
    assert found(model, ids(), "scale_without_init") == expected


@pytest.mark.parametrize("depth", [2, 3])
def test_weights_scaled_by_their_fan_are_no_partial_init(depth):
    """With two layers, a feed-forward four times as wide has half of the deviation: 1 / sqrt(4)."""

    class Wide(PreLayer):
        def __init__(self):
            super().__init__()
            self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    model = Classifier([Wide() for _ in range(depth)], nn.LayerNorm(D))
    assert found(model, ids(), "scale_without_init") == set()
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
    assert found(model, ids(), "scale_without_init") == set()


# Options


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("value", ["gelu", nn.GELU, F.gelu, None])
def test_options_of_other_types_are_tried(value, ignored):
    def build(activation: float | None = value):
        is_used = activation != value and not ignored
        middle = nn.Tanh() if is_used else nn.GELU()
        return nn.Sequential(nn.Linear(D, D), middle, nn.Linear(D, D))

    report = addnorm.doctor(
        build(), vectors(), config={"activation": value}, build=build, rules=["ineffective_option"]
    )
    assert bool(report.findings) is ignored
