"""Additions in every form, and operations that only resemble one."""

import functools
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import addnorm

DIM, LAYERS = 24, 3


class Added(nn.Module):
    """x = add(x, f(norm(x))), three times, and a final norm."""

    def __init__(self, add):
        super().__init__()
        self.first = nn.Linear(DIM, DIM)
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(LAYERS)])
        self.mlps = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(DIM, 48), nn.GELU(), nn.Linear(48, DIM))
                for _ in range(LAYERS)
            ]
        )
        self.weights = nn.Parameter(torch.full((2,), 0.7))
        self.bias, self.add, self.final = (
            nn.Parameter(torch.zeros(DIM)),
            add,
            nn.LayerNorm(DIM),
        )

    def forward(self, x):
        x = self.first(x)
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            x = self.add(self, x, mlp(norm(x)))
        return self.final(x)


def sliced(_, x, f):
    y = x.clone()
    y[:, :] += f
    return y


def partly(_, x, f):
    y = x.clone()
    y[:, 1:] = x[:, 1:] + f[:, 1:]
    return y


def rows(_, x, f):
    some = torch.arange(0, x.shape[1], 2)
    return x.index_add(1, some, f[:, some])


def scattered(_, x, f):
    return x.scatter_add(1, torch.arange(x.shape[1])[None, :, None].expand_as(f), f)


def chosen(_, x, f):
    return torch.where(torch.ones(x.shape[:2], dtype=torch.bool)[..., None], x + f, x)


ADDS = {
    "the other way round": lambda m, x, f: f + x,
    "stack and sum": lambda m, x, f: torch.stack([x, f]).sum(0),
    "stack and sum, last": lambda m, x, f: torch.sum(torch.stack((x, f), dim=-1), dim=-1),
    "cat and sum": lambda m, x, f: torch.cat([x[None], f[None]]).sum(0),
    "sum of a list": lambda m, x, f: sum([x, f]),
    "reduce": lambda m, x, f: functools.reduce(operator.add, [f, x]),
    "einsum": lambda m, x, f: torch.einsum("s,sbtd->btd", torch.ones(2), torch.stack([x, f])),
    "tensordot": lambda m, x, f: torch.tensordot(torch.ones(2), torch.stack([x, f]), dims=1),
    "matmul": lambda m, x, f: (torch.ones(1, 2) @ torch.stack([x, f], -2)).squeeze(-2),
    "addcmul": lambda m, x, f: torch.addcmul(x, f, torch.ones(1)),
    "minus minus": lambda m, x, f: x - (-f),
    "alpha": lambda m, x, f: torch.sub(x, f, alpha=-1),
    "a bias between": lambda m, x, f: (x + m.bias) + f,
    "in place, a slice": sliced,
    "a part of the tokens": partly,
    "index_add": rows,
    "scatter_add": scattered,
    "where": chosen,
}


@pytest.mark.parametrize("name", ADDS)
def test_every_form_of_addition_is_found(name):
    torch.manual_seed(0)
    report = addnorm.doctor(Added(ADDS[name]), torch.randn(2, 5, DIM))
    assert [(b.wiring, b.tags) for b in report.blocks] == [("pre_ln", ())] * LAYERS
    assert {b.stream for b in report.blocks} == {0}
    assert report.findings == ()


def test_mean_of_shortcut_and_branch_scales_stream():
    report = addnorm.doctor(
        Added(lambda m, x, f: torch.stack([x, f]).mean(0)), torch.randn(2, 5, DIM)
    )
    assert {b.wiring for b in report.blocks} == {"pre_ln"}
    assert [b.tags for b in report.blocks] == [(), ("scaled-stream",), ("scaled-stream",)]


def test_weighted_sum_of_stream_and_branch_is_residual():
    def mixed(m, x, f):
        return torch.einsum("s,sbtd->btd", m.weights, torch.stack([x, f]))

    report = addnorm.doctor(Added(mixed), torch.randn(2, 5, DIM))
    assert [b.wiring for b in report.blocks] == ["pre_ln"] * LAYERS


@pytest.mark.parametrize(
    "add",
    [
        lambda m, x, f: F.linear(torch.cat([x, f], -1), m.first.weight.repeat(1, 2)),
        lambda m, x, f: torch.maximum(x, f),
        lambda m, x, f: f - x.roll(1, 1),
    ],
)
def test_other_combinations_are_not_residual(add):
    assert addnorm.doctor(Added(add), torch.randn(2, 5, DIM)).blocks == ()


def test_stacked_sum_has_statistics_of_plain_sum():
    torch.manual_seed(0)
    plain = Added(lambda m, x, f: x + f)
    stacked = Added(ADDS["stack and sum"])
    stacked.load_state_dict(plain.state_dict())
    x = torch.randn(2, 5, DIM)
    one, other = addnorm.doctor(plain, x), addnorm.doctor(stacked, x)
    for a, b in zip(one.blocks, other.blocks, strict=True):
        for name in ("shortcut_variance", "branch_variance", "dependency", "gradient_norm"):
            assert a.measurements[name] == pytest.approx(b.measurements[name])
