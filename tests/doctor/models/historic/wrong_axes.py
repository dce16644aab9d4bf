"""Norms over the wrong axis."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.historic.cases import (
    BATCH,
    LENGTH,
    Classifier,
    D,
    PostLayer,
    PreLayer,
    generator,
    ids,
    register,
    vectors,
)

CASES = []
RULE = "wrong_axis"


class Free(nn.Module):
    """Norm without weights, given as a function."""

    def __init__(self, formula):
        super().__init__()
        self.formula = formula

    def forward(self, x):
        return self.formula(x)


@register(CASES, "Qualcomm-AI-research/geometric-algebra-transformer#8", RULE, vectors)
def all_axes_but_the_first(bug):
    def formula(x):
        return F.layer_norm(x, x.shape[1:] if bug else x.shape[-1:])

    layers = [PreLayer(norm=lambda _: Free(formula)) for _ in range(2)]
    return nn.Sequential(*layers, nn.LayerNorm(D), nn.Linear(D, 4))


@register(CASES, "reczoo/FuxiCTR#23", RULE, ids)
def fields_and_features(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(40, D)
            self.norm = nn.LayerNorm([LENGTH, D] if bug else D)
            self.layers = nn.Sequential(*[PostLayer() for _ in range(2)])
            self.head = nn.Linear(LENGTH * D, 1)

        def forward(self, fields):
            return self.head(self.layers(self.norm(self.table(fields))).flatten(1))

    return Model()


@register(CASES, "bkitano/llama-from-scratch#4", RULE, ids)
def rms_over_the_sequence(bug):
    class Root(nn.Module):
        def __init__(self, _):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(LENGTH, D))

        def forward(self, x):
            if bug:
                size = torch.linalg.norm(x, dim=(1, 2)) * x[0].numel() ** -0.5
                size = size[:, None, None]
            else:
                size = torch.linalg.norm(x, dim=-1, keepdim=True) * D**-0.5
            return self.scale[: x.shape[1]] * x / (size + 1e-6)

    return Classifier([PreLayer(norm=Root) for _ in range(2)], Root(D))


class LinearAttention(nn.Module):
    """Linear attention between pixels, channels first."""

    def __init__(self, bug):
        super().__init__()
        self.qkv, self.out = nn.Conv2d(D, 3 * D, 1), nn.Conv2d(D, D, 1)
        self.gain, self.axis = nn.Parameter(torch.ones(6 if bug else (D, 1, 1))), -1 if bug else 1
        self.gain = nn.Parameter(torch.ones(6) if bug else torch.ones(D, 1, 1))

    def forward(self, x):
        q, k, v = self.qkv(x).flatten(2).chunk(3, 1)
        y = (v @ F.relu(k).mT @ F.relu(q)).view_as(x) / 36
        y = self.out(y)
        y = y * torch.rsqrt(y.pow(2).mean(self.axis, keepdim=True) + 1e-5) * self.gain
        return x + y


@register(
    CASES,
    "huggingface/diffusers#11387",
    RULE,
    lambda: torch.randn(2, D, 6, 6, generator=generator()),
)
def rms_over_the_width_of_an_image(bug):
    return nn.Sequential(*[LinearAttention(bug) for _ in range(2)], nn.Conv2d(D, 3, 1))


@register(CASES, "tensorflow/addons#2142", RULE, ids)
def layer_norm_over_axis_one(bug):
    class Axis(nn.Module):
        def __init__(self, _):
            super().__init__()
            self.axis = 1 if bug else -1
            size = (1, LENGTH, 1) if bug else (1, 1, D)
            self.gamma = nn.Parameter(torch.ones(size))

        def forward(self, x):
            variance, mean = torch.var_mean(x, self.axis, correction=0, keepdim=True)
            return self.gamma * (x - mean) * torch.rsqrt(variance + 1e-3)

    return Classifier([PostLayer(norm=Axis) for _ in range(2)])


@register(CASES, "kyegomez/zeta#180", RULE, ids)
def unit_norm_over_tokens(bug):
    class Root(nn.Module):
        def __init__(self, _):
            super().__init__()
            self.g = nn.Parameter(torch.ones(D))

        def forward(self, x):
            return F.normalize(x, dim=-2 if bug else -1) * D**0.5 * self.g

    return Classifier([PreLayer(norm=Root) for _ in range(2)], Root(D))


@register(
    CASES, "xieyulai/LSTM-for-Human-Activity-Recognition-using-2D-Pose_Pytorch#2", RULE, vectors
)
def batch_norm_without_transpose(bug):
    class Batch(nn.Module):
        def __init__(self, _):
            super().__init__()
            self.norm = nn.BatchNorm1d(LENGTH if bug else D)

        def forward(self, x):
            return self.norm(x) if bug else self.norm(x.mT).mT

    return nn.Sequential(*[PostLayer(norm=Batch) for _ in range(2)], nn.Linear(D, 6))


@register(CASES, "espnet/espnet#3183 (axis)", RULE, lambda: vectors().mT.contiguous())
def channels_first_norm_over_time(bug):
    """Stream (B, D, L): pointwise convolutions, and a norm that may lack its transpose."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(LENGTH if bug else D)
            self.up, self.down = nn.Conv1d(D, 2 * D, 1), nn.Conv1d(2 * D, D, 1)

        def forward(self, x):
            y = self.norm(x) if bug else self.norm(x.mT).mT
            return x + self.down(F.relu(self.up(y)))

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 5)

        def forward(self, x):
            return self.head(self.norm(x.mT))

    return nn.Sequential(*[Layer() for _ in range(3)], Head())


@register(
    CASES, "pytorch/pytorch#76613", f"{RULE}|batch_leak",
    lambda: vectors().transpose(0, 1).contiguous(),
)  # fmt: skip
def layer_norm_over_batch_and_features(bug):
    """Stream (L, B, D)."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm((BATCH, D) if bug else D)
            self.attention = nn.MultiheadAttention(D, 3)
            self.up, self.down = nn.Linear(D, 48), nn.Linear(48, D)
            self.second = nn.LayerNorm(D)

        def forward(self, x):
            y = self.norm(x)
            x = x + self.attention(y, y, y)[0]
            return x + self.down(F.relu(self.up(self.second(x))))

    return nn.Sequential(*[Layer() for _ in range(2)], nn.LayerNorm(D))
