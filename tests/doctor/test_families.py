"""Model families that the doctor once misclassified."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import addnorm
from tests.doctor.models.tiny import (
    DIM,
    Attention,
    FeedForward,
    Model,
    PreBlock,
    ids,
    stack,
    vectors,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Conditioned(nn.Module):
    """adaLN-zero: a condition determines scale, shift and gate of both branches."""

    def __init__(self, depth=2):
        super().__init__()
        self.subs = nn.ModuleList(m for _ in range(depth) for m in (Attention(), FeedForward()))
        self.made = nn.ModuleList(nn.Linear(DIM, 3 * DIM) for _ in self.subs)
        self.first, self.time = nn.Linear(DIM, DIM), nn.Linear(1, DIM)
        for matrix in self.made:
            nn.init.zeros_(matrix.weight)

    def forward(self, x, time):
        x, c = self.first(x), self.time(time)
        for f, made in zip(self.subs, self.made, strict=True):
            scale, shift, gate = made(F.silu(c))[:, None].chunk(3, -1)
            x = x + gate * f(F.layer_norm(x, (DIM,)) * (1 + scale) + shift)
        return F.layer_norm(x, (DIM,))


def test_gate_computed_from_condition_is_a_gate():
    report = addnorm.doctor(Conditioned(), (vectors(), torch.rand(2, 1)))
    assert [(b.kind, b.wiring, b.tags) for b in report.blocks] == [
        ("self-attention", "pre_ln", ("gated",)),
        ("feed-forward", "pre_ln", ("gated",)),
    ] * 2
    assert report.findings == ()


class Scaled(nn.Module):
    """x + r f(x), with or without the shifts of Fixup."""

    def __init__(self, start, shift):
        super().__init__()
        self.attention, self.ffn = Attention(), FeedForward()
        self.scales = nn.Parameter(torch.tensor([start, 0.7 * start]))
        self.shifts = nn.Parameter(torch.zeros(2)) if shift else None

    def forward(self, x, mask=None):
        for i, f in enumerate((self.attention, self.ffn)):
            h = x if self.shifts is None else x + self.shifts[i]
            x = x + self.scales[i] * f(h)
        return x


@pytest.mark.parametrize("start", [0.0, 0.3])
def test_trained_rezero_is_recognized(start):
    report = addnorm.doctor(Model([Scaled(start, False) for _ in range(3)]), ids())
    assert report.arrangement == "rezero" and "fixup" not in report.fits
    report = addnorm.doctor(Model([Scaled(start, True) for _ in range(3)]), ids())
    assert report.arrangement == "fixup"


class Queries(nn.Module):
    """Decoder with zero-initialized learned queries and self-attention first (DETR)."""

    def __init__(self):
        super().__init__()
        self.place, self.first = nn.Parameter(torch.randn(5, DIM)), nn.Linear(DIM, DIM)
        self.looks = nn.ModuleList(
            nn.MultiheadAttention(DIM, 3, batch_first=True) for _ in range(4)
        )
        self.mlps = nn.ModuleList(FeedForward() for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(6))

    def forward(self, x):
        memory, place = self.first(x), self.place.expand(len(x), -1, -1)
        y = torch.zeros_like(place)
        for i in range(2):
            own, other = self.looks[2 * i : 2 * i + 2]
            one, two, three = self.norms[3 * i : 3 * i + 3]
            h = y + place
            y = one(y + own(h, h, y, need_weights=False)[0])
            y = two(y + other(y + place, memory, memory, need_weights=False)[0])
            y = three(y + self.mlps[i](y))
        return y


def test_self_attention_of_learned_queries_is_found():
    report = addnorm.doctor(Queries(), vectors())
    kinds = ["self-attention", "cross-attention", "feed-forward"] * 2
    assert [(b.kind, b.wiring, b.tags) for b in report.blocks] == [
        (k, "post_ln", ()) for k in kinds
    ]
    assert not any("residual add" in note for note in report.notes)


class Series(nn.Module):
    """Series with missing values, scaled by the observed ones."""

    def __init__(self, hides):
        super().__init__()
        self.first, self.hides = nn.Linear(1, DIM), hides
        self.blocks, self.last = nn.ModuleList(stack(PreBlock)), nn.LayerNorm(DIM)

    def forward(self, values, observed):
        scale = (values.abs() * observed).sum(1, keepdim=True) / observed.sum(1, keepdim=True)
        x = self.first((values / scale)[..., None])
        if self.hides:
            x = x * observed[..., None]
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def test_mask_of_observed_values_is_not_a_token_mask():
    observed = torch.ones(2, 9)
    for mask in (observed, observed.index_fill(1, torch.tensor([3]), 0)):
        example = {"values": torch.randn(2, 9), "observed": mask}
        assert addnorm.doctor(Series(False), example).findings == ()
    model = Series(True)
    model.first.bias.data.fill_(1.0)
    assert addnorm.doctor(model, example).findings == ()  # hidden values reach no output


def test_attention_mask_over_numeric_inputs_is_a_token_mask():
    class Pooled(nn.TransformerEncoderLayer):
        def forward(self, x, mask):
            return super().forward(x, src_key_padding_mask=~mask.bool()).mean(1)

    example = {"x": vectors(), "mask": torch.ones(2, 7)}
    report = addnorm.doctor(Pooled(DIM, 3, DIM, batch_first=True), example)
    assert {finding.rule for finding in report.findings} == {"padding_leak"}


class Scan(nn.Module):
    """Recurrence over tokens: stacked, written in place, or in closed form."""

    def __init__(self, way):
        super().__init__()
        self.norm, self.way = nn.LayerNorm(DIM), way
        self.widen, self.out = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        u, gate = self.widen(self.norm(x)).chunk(2, -1)
        if self.way == "sums":
            log = F.logsigmoid(gate).cumsum(1)
            return x + self.out(log.exp() * (u * (-log).exp()).cumsum(1))
        gate, h, made = torch.sigmoid(gate), torch.zeros(len(x), DIM), []
        written = torch.zeros_like(x)
        for i in range(x.shape[1]):
            h = gate[:, i] * h + (1 - gate[:, i]) * u[:, i]
            if self.way == "each alone":
                h = torch.relu(u[:, i])
            written[:, i] = h
            made.append(h)
        return x + self.out(written if self.way == "written" else torch.stack(made, 1))


@pytest.mark.parametrize(
    ("way", "kind"),
    [("stacked", "mixer"), ("written", "mixer"), ("sums", "mixer"), ("each alone", "feed-forward")],
)
def test_scan_mixes_tokens(way, kind):
    report = addnorm.doctor(nn.Sequential(Scan(way), Scan(way), nn.LayerNorm(DIM)), vectors())
    assert [(b.kind, b.wiring) for b in report.blocks] == [(kind, "pre_ln")] * 2
