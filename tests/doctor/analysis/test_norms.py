"""Handwritten norms in common forms."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import addnorm
from tests.doctor.models.tiny import DIM, FeedForward, vectors

EPS = 1e-5


def textbook(x, g, b):
    return g * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + EPS) + b


def var(x, g, b):
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + EPS) * g + b


def rsqrt(x, g, b):
    m = x.mean(dim=-1, keepdim=True)
    return g * ((x - m) * torch.rsqrt(((x - m) ** 2).mean(dim=-1, keepdim=True) + EPS)) + b


def unsqueeze(x, g, b):
    m, s = x.mean(-1).unsqueeze(-1), x.var(-1, unbiased=False).unsqueeze(-1)
    return (x - m) / (s + EPS).sqrt() * g + b


def two_moments(x, g, b):
    m = x.mean(-1, keepdim=True)
    v = (x * x).mean(-1, keepdim=True) - m**2
    return (x - m) * (v + EPS) ** -0.5 * g + b


def var_mean(x, g, b):
    v, m = torch.var_mean(x, dim=-1, keepdim=True, unbiased=False)
    return torch.addcmul(b, g, (x - m) / torch.sqrt(v + EPS))


def in_double(x, g, b):
    y = x.double()
    y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True, unbiased=False) + EPS).sqrt()
    return y.to(x.dtype) * g + b


def by_einsum(x, g, b):
    c = x - torch.einsum("btd->bt", x)[..., None] / x.shape[-1]
    v = torch.einsum("btd,btd->bt", c, c)[..., None] / x.shape[-1]
    return c / torch.sqrt(v + EPS) * g + b


def by_matmul(x, g, b):
    ones = torch.full((x.shape[-1], 1), 1 / x.shape[-1])
    c = x - x @ ones
    return c * torch.rsqrt(c.square() @ ones + EPS) * g + b


def in_place(x, g, b):
    y = x - x.mean(-1, keepdim=True)
    y = y.div((y.pow(2).mean(-1, keepdim=True) + EPS).sqrt())
    return y.mul(g).add(b)


def sums(x, g, b):
    n = x.size(-1)
    c = x - x.sum(-1, keepdim=True) / n
    return g * c / torch.sqrt((c * c).sum(-1, keepdim=True) / n + EPS) + b


def inverse(x, g, b):
    c = x - x.mean(-1, keepdim=True)
    r = 1.0 / torch.sqrt(c.pow(2).mean(-1, keepdim=True) + EPS)
    return c * r * g + b


def reciprocal(x, g, b):
    c = x - x.mean(-1, keepdim=True)
    return c * torch.reciprocal(c.std(-1, keepdim=True, unbiased=False) + EPS) * g + b


def scale_and_shift(x, g, b):
    m, v = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    scale = torch.rsqrt(v + EPS)
    return (x * scale - m * scale) * g + b


def negative_mean(x, g, b):
    c = x + (-x.mean(-1, keepdim=True))
    return c / (c.square().mean(-1, keepdim=True) + EPS).sqrt() * g + b


def bare(x, g, b):
    return F.layer_norm(x, (x.shape[-1],)) * g + b


LAYER = [textbook, var, rsqrt, unsqueeze, two_moments, var_mean, in_double, by_einsum, by_matmul,
         in_place, sums, inverse, reciprocal, scale_and_shift, negative_mean, bare]  # fmt: skip


def rms_textbook(x, g, b):
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * g


def rms_llama(x, g, b):
    y = x.float()
    return g * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def rms_norm_op(x, g, b):
    return x / (x.norm(2, dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + EPS) * g


def rms_normalize(x, g, b):
    return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * g


def rms_gemma(x, g, b):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + EPS)
    return (y * (1.0 + (g - 1))).type_as(x)


def rms_vector_norm(x, g, b):
    return x * x.shape[-1] ** 0.5 / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + EPS) * g


def rms_einsum(x, g, b):
    return x * (torch.einsum("...d,...d->...", x, x)[..., None] / x.shape[-1] + EPS).rsqrt() * g


def rms_clamped(x, g, b):
    return g * x / x.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=EPS)


def rms_root_of_sum(x, g, b):
    return x / ((x**2).sum(-1, keepdim=True) / x.size(-1) + EPS) ** 0.5 * g


RMS = [rms_textbook, rms_llama, rms_norm_op, rms_normalize, rms_gemma, rms_vector_norm, rms_einsum,
       rms_clamped, rms_root_of_sum]  # fmt: skip


class Norm(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.zeros(DIM))
        self.function = function

    def forward(self, x):
        return self.function(x, self.g, self.b)


class Stack(nn.Module):
    """Three feed-forwards, with norms as modules or inline."""

    def __init__(self, function, place, inline):
        super().__init__()
        self.norms = nn.ModuleList([Norm(function) for _ in range(4)])
        self.mlps = nn.ModuleList([FeedForward() for _ in range(3)])
        self.place, self.inline, self.function = place, inline, function

    def norm(self, i, x):
        norm = self.norms[i]
        return self.function(x, norm.g, norm.b) if self.inline else norm(x)

    def forward(self, x):
        x = x * 1.0
        for i, mlp in enumerate(self.mlps):
            if self.place == "pre_ln":
                x = x + mlp(self.norm(i, x))
            elif self.place == "post_ln":
                x = self.norm(i, x + mlp(x))
            else:
                x = x + self.norm(i, mlp(x))
        return x if self.place == "post_ln" else self.norm(3, x)


@pytest.mark.parametrize("inline", [False, True], ids=["module", "inline"])
@pytest.mark.parametrize("place", ["pre_ln", "post_ln", "res_post"])
@pytest.mark.parametrize("function", LAYER + RMS, ids=lambda f: f.__name__)
def test_every_form_of_norm_is_found(function, place, inline):
    torch.manual_seed(0)
    report = addnorm.doctor(Stack(function, place, inline), vectors(), rules=())
    assert [block.wiring for block in report.blocks] == [place] * 3
    assert [block.tags for block in report.blocks] == [()] * 3
    kind = "layer" if function in LAYER else "rms"
    assert {block.norm for block in report.blocks} == {kind}


@pytest.mark.parametrize("function", LAYER + RMS, ids=lambda f: f.__name__)
def test_no_form_of_norm_causes_findings(function):
    torch.manual_seed(0)
    rules = ["double_norm", "wrong_axis", "inert_norm", "missing_final_norm", "eps_too_small"]
    assert addnorm.doctor(Stack(function, "pre_ln", False), vectors(), rules=rules).findings == ()


OTHER_NORMS = {
    "mean_abs": [
        lambda x, g, b: x / x.abs().mean(-1, keepdim=True) * g,
        lambda x, g, b: g * x / (x.abs().mean(dim=-1, keepdim=True) + EPS),
        lambda x, g, b: x * (x.abs().sum(-1, keepdim=True) / x.shape[-1] + EPS).reciprocal() * g,
    ],
    "l1": [
        lambda x, g, b: x / x.abs().sum(-1, keepdim=True) * g,
        lambda x, g, b: x / x.norm(p=1, dim=-1, keepdim=True) * g,
        lambda x, g, b: F.normalize(x, p=1, dim=-1) * g,
        lambda x, g, b: x / torch.linalg.vector_norm(x, ord=1, dim=-1, keepdim=True) * g,
    ],
    "max_abs": [
        lambda x, g, b: x / x.abs().amax(-1, keepdim=True) * g,
        lambda x, g, b: x / x.abs().max(-1, keepdim=True).values.clamp(min=EPS) * g,
        lambda x, g, b: x / x.norm(p=float("inf"), dim=-1, keepdim=True) * g,
    ],
    "max": [lambda x, g, b: x / (x.amax(-1, keepdim=True) + EPS) * g],
    "l2": [
        lambda x, g, b: x / x.norm(dim=-1, keepdim=True) * g,
        lambda x, g, b: x / (x.pow(2).sum(-1, keepdim=True) + EPS).sqrt() * g,
        lambda x, g, b: F.normalize(x, dim=-1) * g,
    ],
    "rms": [lambda x, g, b: x / (x.abs().pow(2).mean(-1, keepdim=True) + EPS).sqrt() * g],
}


@pytest.mark.parametrize(
    ("kind", "number"),
    [(kind, i) for kind, forms in OTHER_NORMS.items() for i in range(len(forms))],
)
def test_norms_of_absolute_values_have_their_own_names(kind, number):
    torch.manual_seed(0)
    report = addnorm.doctor(Stack(OTHER_NORMS[kind][number], "pre_ln", False), vectors(), rules=())
    assert {(block.wiring, block.norm) for block in report.blocks} == {("pre_ln", kind)}
    title = {"rms": "RMSNorm", "mean_abs": "mean-absolute-value norm", "l1": "L1 norm"}.get(
        kind, ""
    )
    assert title in report.stacks[0]


def test_handwritten_softmax_is_not_a_norm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

        def forward(self, x):
            for _ in range(2):
                e = torch.exp(x - x.amax(-1, keepdim=True))
                x = x + self.down(torch.relu(self.up(e / e.sum(-1, keepdim=True))))
            return x

    report = addnorm.doctor(Net(), vectors(), rules=())
    assert {block.wiring for block in report.blocks} == {"none"}


def test_epsilon_is_read_from_the_formula():
    report = addnorm.doctor(Stack(rsqrt, "pre_ln", False), vectors(), rules=())
    assert {norm.eps for norm in report.norms} == {EPS}
    assert all(norm.by_hand for norm in report.norms)
    assert {norm.place for norm in report.norms} == {"entry", "final"}


class Turned(nn.Module):
    """Batch norm of last-axis features, with as many points as features."""

    def __init__(self):
        super().__init__()
        self.map, self.norm = nn.Linear(DIM, DIM), nn.BatchNorm1d(DIM)

    def forward(self, x):
        return x + self.norm(F.relu(self.map(x)).mT).mT


@pytest.mark.parametrize("points", [DIM, DIM + 3])
def test_batch_norm_of_last_axis_features_has_right_axis(points):
    torch.manual_seed(0)
    model = nn.Sequential(Turned(), Turned()).eval()
    report = addnorm.doctor(model, torch.randn(4, points, DIM), rules=["wrong_axis"])
    assert not report.findings and all(norm.kind == "batch" for norm in report.norms)
