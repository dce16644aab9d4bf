"""Cases written after the rules of commit 02dbafe. `KNOWN_MISSES` are limits of the doctor."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.historic.cases import (
    LAYERS,
    Attention,
    Classifier,
    D,
    H,
    PostLayer,
    PreLayer,
    Tokens,
    feed_forward,
    ids,
    join_heads,
    log_mask,
    register,
    split_heads,
    valid,
    vectors,
)

CASES = []
OPTION = "ineffective_option"
KNOWN_MISSES = {
    # Weights of all sizes are plausible; nothing in the model states the intended one.
    "wrong_fan_of_the_last_matrix",
}


@register(
    CASES, "lucidrains/graph-transformer-pytorch#2", "padding_leak", lambda: (vectors(), valid())
)
def mask_rows_do_not_follow_the_heads(bug):
    class Folded(Attention):
        """Examples and heads share the first axis: example 0 has the first rows."""

        def forward(self, x, bias=None):
            q, k, v = (split_heads(f(x)).flatten(0, 1) for f in (self.q, self.k, self.v))
            rows = bias.repeat(H, 1) if bug else bias.repeat_interleave(H, 0)
            y = ((q @ k.mT) / 8**0.5 + rows[:, None]).softmax(-1) @ v
            return self.o(join_heads(y.unflatten(0, (-1, H))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(PreLayer(attention=Folded) for _ in range(2))
            self.norm = nn.LayerNorm(D)

        def forward(self, nodes, mask):
            for layer in self.layers:
                nodes = layer(nodes, bias=log_mask(mask))
            return self.norm(nodes)

    return Model()


class PooledEncoder(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.embedding, self.pool = Tokens(), pool
        self.layers = nn.ModuleList(PreLayer() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 4)

    def forward(self, tokens, mask):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, bias=log_mask(mask)[:, None, None])
        return self.head(self.pool(self.norm(x), mask))


@register(CASES, "tomhosking/torchseq#10", "padding_leak", lambda: (ids(), valid().long()))
def pooling_has_an_unused_mask(bug):
    class HeadPooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores, self.values = nn.Linear(D, H), nn.Linear(D, D)

        def forward(self, x, mask):
            scores = self.scores(x).mT
            if not bug:
                scores = scores.masked_fill(mask[:, None] == 0, -1e18)
            values = self.values(x).unflatten(-1, (H, -1)).transpose(1, 2)
            return (scores.softmax(-1)[:, :, None] @ values).flatten(1)

    return PooledEncoder(HeadPooling())


@register(CASES, "theislab/CellFlow#226", "padding_leak", lambda: (ids(), valid()))
def class_token_sees_all(bug):
    class TokenPooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.randn(1, 1, D))
            self.attention = Attention()

        def forward(self, x, mask):
            token = self.token.expand(len(x), -1, -1)
            x = torch.cat([token, x], 1)
            seen = F.pad(mask, (1, 0), value=True)
            keep = seen[:, :, None] & seen[:, None]
            if bug:  # the row of the class token is overwritten
                keep[:, 0] = True
            return self.attention(x, bias=log_mask(keep)[:, None])[:, 0]

    return PooledEncoder(TokenPooling())


@register(CASES, "microsoft/ResiDual#2", OPTION, ids, {"normalize_before": False})
def flag_of_another_architecture(bug):
    def build(normalize_before=False):
        layer = PreLayer if normalize_before and not bug else PostLayer
        final = nn.LayerNorm(D) if normalize_before and not bug else None
        return Classifier([layer() for _ in range(2)], final)

    return build


@register(CASES, "OpenNMT/OpenNMT-py#1830", OPTION, ids, {"dropout": 0.1, "attention_dropout": 0.3})
def attention_dropout_falls_back(bug):
    class Layer(PreLayer):
        def __init__(self, dropout, attention_dropout):
            super().__init__()
            self.drop, self.drop_attention = nn.Dropout(dropout), nn.Dropout(attention_dropout)

        def forward(self, x):
            x = x + self.drop_attention(self.attention(self.n1(x)))
            return x + self.drop(self.ff(self.n2(x)))

    def build(dropout=0.1, attention_dropout=0.3):
        second = dropout if bug else attention_dropout
        return Classifier([Layer(dropout, second) for _ in range(2)], nn.LayerNorm(D))

    return build


@register(CASES, "apple/axlearn#397", OPTION, ids, {"layer_norm_epsilon": 1e-12})
def epsilon_of_the_caller_is_overwritten(bug):
    def build(layer_norm_epsilon=1e-12):
        settings = {"eps": layer_norm_epsilon}
        if bug:
            settings |= {"eps": 1e-12}
        return Classifier([PostLayer(norm=lambda d: nn.LayerNorm(d, **settings)) for _ in range(2)])

    return build


@register(CASES, "google/objax#94", "scale_without_init", ids)
def gain_and_bias_are_swapped(bug):
    def norm(dim):
        module = nn.LayerNorm(dim)
        if bug:
            nn.init.zeros_(module.weight)
            nn.init.ones_(module.bias)
        return module

    return Classifier([PreLayer(norm=norm) for _ in range(2)], nn.LayerNorm(D))


@register(CASES, "deeplearning4j/deeplearning4j#8241", "eps_too_small", ids)
def deviation_without_eps(bug):
    class Standardize(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.gain, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

        def forward(self, x):
            deviation, mean = torch.std_mean(x, -1, keepdim=True)
            deviation = deviation if bug else deviation + 1e-5
            return (x - mean) / deviation * self.gain + self.bias

    return Classifier([PostLayer(norm=Standardize) for _ in range(2)])


@register(CASES, "facebookresearch/fairseq#4613", "padding_leak", lambda: (vectors(), valid()))
def adaptor_convolution_reads_padding(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.adaptor = PreLayer(), nn.Conv1d(D, 2 * D, 3, stride=2, padding=1)
            self.first, self.norm = nn.LayerNorm(D), nn.LayerNorm(D)

        def forward(self, x, mask):
            x = self.first(self.layer(x, bias=log_mask(mask)[:, None, None]))
            x = x if bug else x * mask[..., None]
            return self.norm(F.glu(self.adaptor(x.mT), 1).mT)

    return Model()


@register(CASES, "tensorpack/tensorpack#1482", "wrong_axis", vectors)
def moments_of_all_axes_but_the_first(bug):
    class Moments(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.beta, self.gamma = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.ones(dim))

        def forward(self, x):
            axes = list(range(1, x.dim())) if bug else [-1]
            mean, square = x.mean(axes, keepdim=True), x.pow(2).mean(axes, keepdim=True)
            scale = self.gamma * torch.rsqrt(square - mean.pow(2) + 1e-5)
            return x * scale + (self.beta - mean * scale)

    return nn.Sequential(*[PreLayer(norm=Moments) for _ in range(2)], nn.LayerNorm(D))


@register(CASES, "tenstorrent/tt-metal#48716", "scale_without_init", ids)
def wrong_fan_of_the_last_matrix(bug):
    model = Classifier([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and name.startswith("layers"):
            is_last = name.endswith(("o.weight", "2.weight"))
            fan = D if bug else weight.shape[1]
            nn.init.normal_(weight, std=1 / math.sqrt(fan * (LAYERS if is_last else 1)))
    return model


@register(CASES, "vivekh2000 in lucidrains/vit-pytorch#274", "double_norm|shared_norm", vectors)
def final_norm_inside_the_loop(bug):
    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.ModuleList([nn.LayerNorm(D), Attention(), nn.LayerNorm(D), feed_forward()])
                for _ in range(LAYERS)
            )
            self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, 5)

        def forward(self, x):
            for n1, attention, n2, ff in self.layers:
                x = attention(n1(x)) + x
                x = ff(n2(x)) + x
                x = self.norm(x) if bug else x
            return self.head((x if bug else self.norm(x)).mean(1))

    return Transformer()
