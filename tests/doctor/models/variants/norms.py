"""Variants: formulas, epsilons, axes and gains of norms, and sub-layers without one."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.review.case import ids
from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PostLayer,
    PreLayer,
    SelfAttention,
    image,
)
from tests.doctor.models.variants.case import language_model, replace_norms, variant


def model_with(formula, start=torch.ones):
    """Return a model whose norms are `formula(x, gain)`."""

    class ByHand(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(start(64))

        def forward(self, x):
            return formula(x, self.gain)

    return replace_norms(language_model(SelfAttention), ByHand)


def mean_square(x):
    return x.pow(2).mean(-1, keepdim=True)


@variant("unrooted_norm", ids(2, 12))
def divided_by_the_mean_square(broken):
    if broken:
        return model_with(lambda x, gain: x / (mean_square(x) + 1e-6) * gain)
    return model_with(lambda x, gain: x / (mean_square(x) + 1e-6).sqrt() * gain)


@variant("unrooted_norm", ids(2, 12))
def divided_by_the_variance(broken):
    def formula(x, gain):
        centered = x - x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True) + 1e-6
        return centered / (variance if broken else variance.sqrt()) * gain

    return model_with(formula)


@variant("scale_without_init", ids(2, 12))
def sum_of_squares_instead_of_their_mean(broken):
    def formula(x, gain):
        squares = x.pow(2)
        size = squares.sum(-1, keepdim=True) if broken else squares.mean(-1, keepdim=True)
        return x * torch.rsqrt(size + 1e-6) * gain

    return model_with(formula)


@variant("scale_without_init", ids(2, 12))
def gain_of_zero(broken):
    offset = 0 if broken else 1
    return model_with(
        lambda x, gain: (
            x * torch.rsqrt(mean_square(x) + 1e-6) * (gain + offset if offset else gain)
        ),
        start=torch.zeros,
    )


@variant("eps_too_small", ids(2, 12))
def epsilon_behind_the_reciprocal(broken):
    if broken:
        return model_with(lambda x, gain: x * (torch.rsqrt(mean_square(x)) + 1e-6) * gain)
    return model_with(lambda x, gain: x * torch.rsqrt(mean_square(x) + 1e-6) * gain)


@variant("eps_too_small", ids(2, 12))
def epsilon_behind_the_root(broken):
    if broken:
        return model_with(lambda x, gain: x / (mean_square(x).sqrt() + 1e-6) * gain)
    return model_with(lambda x, gain: x / (mean_square(x) + 1e-6).sqrt() * gain)


@variant("eps_too_large", ids(2, 12))
def dropout_rate_as_epsilon(broken):
    options = (64, 0.1) if broken else (64,)
    return replace_norms(language_model(SelfAttention), lambda: nn.LayerNorm(*options))


@variant("missing_norm", ids(2, 12))
def feed_forward_without_a_norm(broken):
    class Layer(PreLayer):
        def __init__(self):
            super().__init__(SelfAttention())
            self.norm2 = nn.Identity() if broken else self.norm2

    return LanguageModel([Layer() for _ in range(2)])


@variant("missing_norm", ids(2, 12))
def attention_without_a_norm_behind_it(broken):
    class Layer(PostLayer):
        def __init__(self):
            super().__init__(SelfAttention())
            self.norm1 = nn.Identity() if broken else self.norm1

    return LanguageModel([Layer() for _ in range(2)], final_norm=False)


@variant("wrong_axis", image())
def layer_norm_over_the_width_of_an_image(broken):
    class Block(nn.Module):
        def __init__(self, dim=32, width=8):
            super().__init__()
            self.depthwise = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
            self.norm = nn.LayerNorm(width if broken else dim)
            self.wide, self.narrow = nn.Linear(dim, 64), nn.Linear(64, dim)

        def forward(self, x):
            y = self.depthwise(x)
            y = self.norm(y).permute(0, 2, 3, 1) if broken else self.norm(y.permute(0, 2, 3, 1))
            return x + self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)

    class Net(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.stem = nn.Conv2d(3, dim, 4, 4)
            self.blocks = nn.Sequential(Block(), Block())
            self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 5)

        def forward(self, picture):
            return self.head(self.norm(self.blocks(self.stem(picture)).mean((2, 3))))

    return Net()
