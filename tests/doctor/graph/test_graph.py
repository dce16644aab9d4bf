"""Cost of graph walks: long unrolled models stay within the budget."""

import pytest
import torch
from torch import nn

import addnorm
from addnorm.doctor.model_trace import trace_model
from tests.doctor.models.tiny import DIM


class Scan(nn.Module):
    """Unrolled scan, h = a h + b x."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.a, self.b, self.o = (nn.Linear(DIM, DIM) for _ in range(3))

    def forward(self, x):
        u = self.norm(x)
        a, b, h, out = torch.sigmoid(self.a(u)), self.b(u), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + b[:, t]
            out.append(h * u[:, t])
        return x + self.o(torch.stack(out, 1))


class Cell(nn.Module):
    """Unrolled recurrent cell, h = tanh(W x + U h), with a matrix in each step."""

    def __init__(self):
        super().__init__()
        self.norm, self.w, self.u = nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        given, h, out = self.w(self.norm(x)), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = torch.tanh(given[:, t] + self.u(h))
            out.append(h)
        return x + torch.stack(out, 1)


def walked(block, length):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIM, DIM), block(), nn.LayerNorm(DIM))
    x = torch.randn(2, length, DIM)
    with trace_model(model, x) as trace:
        return trace.recording.graph, [r.has_pre_norm for r in trace.analysis.blocks()]


def test_walk_steps_grow_linearly_with_scan_length():
    short, long = walked(Scan, 30), walked(Scan, 120)
    assert short[1] == long[1] == [True]
    assert long[0].walk_steps < 6 * short[0].walk_steps


def test_exhausted_walk_budget_is_noted(monkeypatch):
    monkeypatch.setattr("addnorm.doctor.graph.graph.MAX_WALK_STEPS", 2000)
    graph, _ = walked(Cell, 80)
    assert graph.over_budget
    model = nn.Sequential(nn.Linear(DIM, DIM), Cell(), nn.LayerNorm(DIM))
    report = addnorm.doctor(model, torch.randn(2, 80, DIM), rules=())
    assert any("covered at most 300 operations" in note for note in report.notes)


@pytest.mark.parametrize("way", ["W @ x", "matmul", "einsum", "transposed", "linear"])
def test_matrix_along_tokens_is_mixer(way):
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.w = nn.LayerNorm(DIM), nn.Parameter(torch.randn(7, 7))

        def forward(self, x):
            h = self.norm(x)
            if way == "W @ x":
                return x + self.w @ h
            if way == "matmul":
                return x + torch.matmul(self.w, h)
            if way == "einsum":
                return x + torch.einsum("btd,ts->bsd", h, self.w)
            if way == "transposed":
                return x + (h.transpose(1, 2) @ self.w).transpose(1, 2)
            return x + nn.functional.linear(h.transpose(1, 2), self.w).transpose(1, 2)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIM, DIM), Mixer(), nn.LayerNorm(DIM))
    (block,) = addnorm.doctor(model, torch.randn(2, 7, DIM), rules=()).blocks
    assert block.kind == "mixer"


@pytest.mark.parametrize("way", ["x @ W", "einsum", "W x"])
def test_matrix_along_features_is_feed_forward(way):
    class Feed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.w = nn.LayerNorm(DIM), nn.Parameter(torch.randn(DIM, DIM))

        def forward(self, x):
            h = self.norm(x)
            if way == "x @ W":
                return x + torch.relu(h @ self.w)
            if way == "einsum":
                return x + torch.relu(torch.einsum("btd,df->btf", h, self.w))
            return x + torch.relu(self.w @ h.mT).mT

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(DIM, DIM), Feed(), nn.LayerNorm(DIM))
    (block,) = addnorm.doctor(model, torch.randn(2, 7, DIM), rules=()).blocks
    assert block.kind == "feed-forward"
