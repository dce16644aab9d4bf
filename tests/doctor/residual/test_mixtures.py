"""Hyper-connections in every axis order and form; other models are not mistaken for them."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.hyper_connections import DEPTH, LAYOUTS, WAYS, Hyper
from tests.doctor.models.tiny import DIM, FeedForward, ids, vectors

WANTED = [
    (kind, "pre_ln", ("hyper-connections",)) for kind in ("self-attention", "feed-forward")
] * DEPTH


def seen(model, example):
    torch.manual_seed(0)
    report = addnorm.doctor(model, example)
    assert report.findings == () and report.notes == ()
    assert [", final norm," in line for line in report.stacks] == [True]
    return [(b.kind, b.wiring, b.tags) for b in report.blocks]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_streams_on_any_axis(layout, way):
    assert seen(Hyper(layout, way), ids()) == WANTED


@pytest.mark.parametrize("way", WAYS)
def test_unmixed_streams_and_learned_readout(way):
    assert seen(Hyper("bntd", way, keep=True, last="read"), ids()) == WANTED
    assert seen(Hyper("btdn", way, last="read", streams=2), ids()) == WANTED


class Smallest(nn.Module):
    """A hyper-connection in three lines."""

    def __init__(self):
        super().__init__()
        self.subs = nn.ModuleList(FeedForward() for _ in range(3))
        self.norm, self.last = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.read, self.write = nn.Parameter(torch.rand(3)), nn.Parameter(torch.rand(3))
        self.mix = nn.Parameter(torch.rand(3, 3))

    def forward(self, x):
        streams = torch.stack([x] * 3, 1)
        for f in self.subs:
            h = torch.einsum("n,bntd->btd", self.read, streams)
            kept = torch.einsum("nm,bntd->bmtd", self.mix, streams)
            streams = kept + torch.einsum("n,btd->bntd", self.write, f(self.norm(h)))
        return self.last(streams.mean(1))


def test_mixed_streams_have_all_measurements():
    report = addnorm.doctor(Smallest(), vectors(), rules=())
    assert [(b.wiring, b.tags) for b in report.blocks] == [("pre_ln", ("hyper-connections",))] * 3
    turned = addnorm.doctor(Hyper("btdn", "einsum"), ids(), rules=())
    plain = addnorm.doctor(Hyper("btnd", "einsum"), ids(), rules=())
    for one, other in zip(turned.blocks, plain.blocks, strict=True):
        assert one.measurements.keys() == other.measurements.keys()


def test_variances_do_not_depend_on_the_layout():
    found = []
    for layout in ("btdn", "bntd"):
        torch.manual_seed(0)
        report = addnorm.doctor(Hyper(layout, "einsum"), ids(), rules=())
        found.append([b.stream_variance for b in report.blocks])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


class Twice(nn.Module):
    """A branch that reads one stream and is added to two (ResiDual)."""

    def __init__(self):
        super().__init__()
        self.subs = nn.ModuleList(FeedForward() for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(4))

    def forward(self, x):
        y = x
        for f, norm in zip(self.subs, self.norms, strict=False):
            branch = f(x)
            x, y = norm(x + branch), y + branch
        return x + self.norms[-1](y)


def test_branch_added_to_two_streams_is_not_a_mixture():
    report = addnorm.doctor(Twice(), vectors(), rules=())
    assert not any("hyper-connections" in b.tags for b in report.blocks)
    assert [b.wiring for b in report.blocks if "dual" not in b.tags] == ["post_ln"] * 3


# a report without blocks explains why


class Far(nn.Module):
    """A sum of two branches with different inputs."""

    def __init__(self):
        super().__init__()
        self.one, self.two = FeedForward(), FeedForward()

    def forward(self, x, y):
        return self.one(x) + self.two(y)


@pytest.mark.parametrize(
    ("model", "example", "why"),
    [
        (nn.Linear(DIM, DIM), vectors(), "no two activations are added"),
        (nn.Flatten(), vectors(), "no operation mixes features or tokens"),
        (
            Far(),
            (vectors(), vectors()),
            "none of 1 additions, the last one in 'the model itself', adds a branch",
        ),
    ],
)
def test_note_explains_missing_blocks(model, example, why):
    (note,) = [n for n in addnorm.doctor(model, example).notes if n.startswith("a residual add")]
    assert why in note


def test_note_names_attention_without_residual():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp, self.norm = FeedForward(), nn.LayerNorm(DIM)
            self.pool = nn.MultiheadAttention(DIM, 3, batch_first=True)

        def forward(self, x):
            x = x + self.mlp(self.norm(x))
            return self.pool(x[:, :1], x, x, need_weights=False)[0]

    (note,) = [n for n in addnorm.doctor(Pooled(), vectors()).notes if "attention" in n]
    assert note.startswith("a residual add around the attention in 'pool'")
