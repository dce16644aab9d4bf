"""Epsilons that are missing, lost, or too small for the precision."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.historic.cases import (
    Attention,
    Classifier,
    D,
    PostLayer,
    PreLayer,
    ids,
    join_heads,
    register,
    split_heads,
)

CASES = []
RULE = "eps_too_small"


class Written(nn.Module):
    """Norm with a gain, whose formula is given as a function."""

    def __init__(self, formula, dim=D):
        super().__init__()
        self.gain, self.formula = nn.Parameter(torch.ones(dim)), formula

    def forward(self, x):
        return self.formula(x) * self.gain


def model(norm, layer=PreLayer, final=True, **options):
    layers = [layer(norm=norm, **options) for _ in range(2)]
    return Classifier(layers, norm(D) if final else None)


@register(CASES, "pytorch/pytorch#32137", RULE, ids)
def normalize_in_half_precision(bug):
    class Cosine(Attention):
        def forward(self, x):
            q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
            eps = {} if bug else {"eps": 1e-4}
            q, k = F.normalize(q, dim=-1, **eps), F.normalize(k, dim=-1, **eps)
            return self.o(join_heads((10 * q @ k.mT).softmax(-1) @ v))

    return model(nn.LayerNorm, attention=Cosine).half()


@register(CASES, "wenet-e2e/wenet#907", RULE, ids)
def built_in_norm_in_half_precision(bug):
    return model(lambda d: nn.LayerNorm(d, eps=1e-12 if bug else 1e-5)).half()


@register(CASES, "torchcvnn/torchcvnn#32", RULE, ids)
def norm_without_eps(bug):
    eps = 0 if bug else 1e-5

    def formula(x):
        centered = x - x.mean(-1, keepdim=True)
        variance = centered.square().mean(-1, keepdim=True)
        variance = variance if bug else variance + eps
        return centered * variance.rsqrt()

    return model(lambda _: Written(formula), PostLayer, final=False)


@register(CASES, "tensorflow/tensorflow#24979", RULE, ids)
def moments_in_half_precision(bug):
    def formula(x):
        variance, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + (1e-12 if bug else 1e-3))

    return model(lambda _: Written(formula)).half()


@register(CASES, "huggingface/diffusers#13316", RULE, ids)
def rms_by_normalize_in_half_precision(bug):
    def formula(x):
        if bug:
            return F.normalize(x, dim=-1) * D**0.5
        return F.normalize(x.float(), dim=-1).to(x.dtype) * D**0.5

    return model(lambda _: Written(formula)).half()


@register(CASES, "deepspeedai/DeepSpeed#581", RULE, ids)
def eps_lost_in_a_cast(bug):
    def formula(x):
        centered = x - x.mean(-1, keepdim=True)
        variance = centered.float().square().mean(-1, keepdim=True) + 1e-12
        if bug:
            return centered * torch.rsqrt(variance.to(x.dtype))
        return (centered.float() * torch.rsqrt(variance)).to(x.dtype)

    return model(lambda _: Written(formula), PostLayer, final=False).half()


@register(CASES, "microsoft/CNTK#3816", RULE, ids)
def root_of_a_difference(bug):
    def formula(x):
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        scale = variance.sqrt() + 1e-5 if bug else (variance + 1e-5).sqrt()
        return (x - mean) / scale

    return model(lambda _: Written(formula))


@register(CASES, "keras-team/keras#22586", RULE, ids)
def group_norm_in_half_precision(bug):
    class Group(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.GroupNorm(1, D, eps=1e-12 if bug else 1e-5)

        def forward(self, x):
            return self.norm(x.flatten(0, 1)).view_as(x)

    return model(lambda _: Group()).half()


@register(CASES, "FluxML/Flux.jl#2096", RULE, ids)
def eps_behind_the_root(bug):
    def formula(x):
        square = x.pow(2).mean(-1, keepdim=True)
        return x / (square.sqrt() + 1e-8) if bug else x / (square + 1e-8).sqrt()

    return model(lambda _: Written(formula))
