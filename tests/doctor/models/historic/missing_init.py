"""Scales whose initialization is missing."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.historic.cases import (
    LAYERS,
    Attention,
    Classifier,
    D,
    PreLayer,
    feed_forward,
    ids,
    register,
    vectors,
)

CASES = []
RULE = "scale_without_init"


class DeepNormLayer(nn.Module):
    """Post-LN with alpha on the skip; `scaled` names the matrices that beta multiplies."""

    def __init__(self, depth, scaled, start=nn.init.xavier_normal_):
        super().__init__()
        self.alpha, beta = (2 * depth) ** 0.25, (8 * depth) ** -0.25
        self.attention, self.ff = Attention(), feed_forward()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        matrices = {n: getattr(self.attention, n) for n in "qkvo"}
        matrices |= {"up": self.ff[0], "down": self.ff[2]}
        for name, matrix in matrices.items():
            if start is not None:
                start(matrix.weight)
            if name in scaled:
                matrix.weight.data.mul_(beta)

    def forward(self, x):
        x = self.n1(self.alpha * x + self.attention(x))
        return self.n2(self.alpha * x + self.ff(x))


@register(CASES, "facebookresearch/xformers#284", RULE, ids)
def value_projection_without_beta(bug):
    scaled = {"o", "up", "down"} | (set() if bug else {"v"})
    return Classifier([DeepNormLayer(6, scaled) for _ in range(6)])


class ScaleNorm(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.g = nn.Parameter(torch.tensor([start]))

    def forward(self, x):
        return self.g * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)


@register(CASES, "EleutherAI/gpt-neox#164", RULE, ids)
def scale_norm_starts_at_one(bug):
    def norm(_):
        return ScaleNorm(1.0 if bug else D**0.5)

    return Classifier([PreLayer(norm=norm) for _ in range(2)], norm(D))


@register(CASES, "lucidrains/x-transformers#246", RULE, ids)
def scale_norm_starts_inverted(bug):
    def norm(_):
        return ScaleNorm(D**-0.5 if bug else D**0.5)

    return Classifier([PreLayer(norm=norm) for _ in range(LAYERS)], norm(D))


@register(CASES, "facebookresearch/xformers#230", RULE, ids)
def deepnorm_with_default_weights(bug):
    scaled = set() if bug else {"v", "o", "up", "down"}
    start = None if bug else nn.init.xavier_normal_
    return Classifier([DeepNormLayer(6, scaled, start) for _ in range(6)])


class Gated(nn.Module):
    """x + gate * f(N(x)) with a learned gate."""

    def __init__(self, inner, start, size=1, norm=True):
        super().__init__()
        self.norm = nn.LayerNorm(D) if norm else nn.Identity()
        self.inner, self.gate = inner, nn.Parameter(torch.full((size,), float(start)))

    def forward(self, x):
        return x + self.gate * self.inner(self.norm(x))


def gated(depth=LAYERS, **options):
    parts = [f() for _ in range(depth) for f in (Attention, feed_forward)]
    return [Gated(part, **options) for part in parts]


@register(CASES, "huggingface/pytorch-image-models#2605 (weights)", RULE, ids)
def layer_scale_starts_at_one(bug):
    return Classifier(gated(start=1.0 if bug else 1e-5, size=D), nn.LayerNorm(D))


@register(CASES, "majumderb/rezero#8", RULE, ids)
def rezero_starts_at_one(bug):
    return Classifier(gated(start=1.0 if bug else 0.0, norm=False))


@register(CASES, "karpathy/llama2.c#579", RULE, ids)
def wrong_matrix_is_scaled(bug):
    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)
            self.attention = Attention()
            self.w1, self.w3, self.w2 = (
                nn.Linear(D, 64, bias=False),
                nn.Linear(D, 64, bias=False),
                nn.Linear(64, D, bias=False),
            )

        def forward(self, x):
            x = x + self.attention(self.n1(x))
            y = self.n2(x)
            return x + self.w2(F.silu(self.w1(y)) * self.w3(y))

    model = Classifier([Llama() for _ in range(6)], nn.RMSNorm(D, eps=1e-5))
    scaled = ("w3.weight" if bug else "w2.weight", "attention.o.weight")
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            size = math.sqrt(2 * 6) if name.endswith(scaled) else 1
            nn.init.normal_(weight, std=0.02 / size)
    return model


@register(CASES, "fabio-deep/Distributed-Pytorch-Boilerplate#1", RULE, vectors)
def zero_gate_on_the_skip(bug):
    class Layer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.gate = inner, nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return self.gate * x + self.inner(x) if bug else x + self.gate * self.inner(x)

    parts = [f() for _ in range(LAYERS) for f in (Attention, feed_forward)]
    return nn.Sequential(*[Layer(part) for part in parts], nn.Linear(D, 5))


@register(CASES, "LiyuanLucasLiu/Transformer-Clinic#9", RULE, ids)
def admin_without_profiling(bug):
    class Layer(nn.Module):
        def __init__(self, inner, number):
            super().__init__()
            self.inner, self.norm = inner, nn.LayerNorm(D)
            start = 1.0 if bug else math.sqrt(1 + 0.5 * number)
            self.omega = nn.Parameter(torch.full((D,), start))

        def forward(self, x):
            return self.norm(x * self.omega + self.inner(x))

    parts = [f() for _ in range(LAYERS) for f in (Attention, feed_forward)]
    return Classifier([Layer(part, number) for number, part in enumerate(parts)])
