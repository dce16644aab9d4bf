"""Fused additions are reported like the plain steps that they are equal to."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.residual.test_add_patterns import DIM, LAYERS, Added


def gate(m, x):
    return torch.sigmoid(m.first(x))


def onto(m, x, f):
    x = x.clone()
    return x.addcmul_(f, m.bias + 1, value=0.5)


PAIRS = {
    "alpha on the branch": (
        lambda m, x, f: torch.add(x, f, alpha=0.3),
        lambda m, x, f: x + 0.3 * f,
        ("scaled-branch",),
    ),
    "alpha on the shortcut": (
        lambda m, x, f: torch.add(f, x, alpha=2.0),
        lambda m, x, f: f + x * 2.0,
        ("scaled-shortcut",),
    ),
    "alpha of a method": (
        lambda m, x, f: f.add(x, alpha=2.0),
        lambda m, x, f: f + x * 2.0,
        ("scaled-shortcut",),
    ),
    "a learned gain": (
        lambda m, x, f: torch.addcmul(x, m.bias + 1, f),
        lambda m, x, f: x + (m.bias + 1) * f,
        ("layer-scale",),
    ),
    "a gate": (
        lambda m, x, f: torch.addcmul(x, gate(m, x), f),
        lambda m, x, f: x + gate(m, x) * f,
        ("gated",),
    ),
    "in place, with a value": (
        onto,
        lambda m, x, f: x + f * (m.bias + 1) * 0.5,
        ("scaled-branch", "layer-scale"),
    ),
    "a quotient": (
        lambda m, x, f: torch.addcdiv(x, f, torch.full((1,), 4.0)),
        lambda m, x, f: x + f / 4.0,
        ("scaled-branch",),
    ),
    "a step of constant length": (
        lambda m, x, f: torch.lerp(x, f, 0.25),
        lambda m, x, f: x + 0.25 * (f - x),
        ("scaled-branch", "interpolated"),
    ),
    "a step of learned length": (
        lambda m, x, f: x.lerp(f, weight=m.bias + 0.5),
        lambda m, x, f: x + (m.bias + 0.5) * (f - x),
        ("layer-scale", "interpolated"),
    ),
    "a step through a gate": (
        lambda m, x, f: torch.lerp(x, f, gate(m, x)),
        lambda m, x, f: x + gate(m, x) * (f - x),
        ("gated", "interpolated"),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_fused_addition_equals_its_steps(name):
    fused, plain, tags = PAIRS[name]
    reports = []
    for add in (fused, plain):
        torch.manual_seed(0)
        reports.append(addnorm.doctor(Added(add), torch.randn(2, 5, DIM)))
    assert [b.tags for b in reports[0].blocks] == [tags] * LAYERS
    for one, other in zip(*(report.blocks for report in reports), strict=True):
        assert (one.wiring, one.kind, one.tags) == (other.wiring, other.kind, other.tags)
        assert (one.shortcut_scale, one.branch_scale) == (other.shortcut_scale, other.branch_scale)
        assert one.measurements == pytest.approx(other.measurements, rel=1e-4)
    assert {f.rule for f in reports[0].findings} == {f.rule for f in reports[1].findings}


def test_gate_from_other_input_through_addcmul():
    class Conditioned(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.gate = nn.LayerNorm(DIM), nn.Linear(DIM, DIM)
            self.mlp = nn.Sequential(nn.Linear(DIM, 48), nn.GELU(), nn.Linear(48, DIM))

        def forward(self, x, c):
            return torch.addcmul(x, self.gate(c)[:, None], self.mlp(self.norm(x)))

    torch.manual_seed(0)
    report = addnorm.doctor(Conditioned(), (torch.randn(2, 5, DIM), torch.randn(2, DIM)))
    assert [(b.wiring, b.kind, b.tags) for b in report.blocks] == [
        ("pre_ln", "feed-forward", ("gated",))
    ]


def test_shift_and_moving_average_are_not_branches():
    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain, self.shift = nn.Parameter(torch.ones(DIM)), nn.Parameter(torch.zeros(DIM))
            self.register_buffer("mean", torch.zeros(DIM))
            self.out = nn.Linear(DIM, DIM)

        def forward(self, x):
            self.mean.lerp_(x.detach().mean((0, 1)), 0.1)
            return self.out(torch.addcmul(self.shift, x, self.gain) - self.mean)

    assert addnorm.doctor(Shifted(), torch.randn(2, 5, DIM)).blocks == ()
