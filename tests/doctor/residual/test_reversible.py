"""Reversible stacks: two streams, or two halves of one, each block reading the other."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import DIM, VOCAB, Attention, FeedForward, ids

DEPTH = 3
ENDS = {
    "side by side": lambda a, b: torch.cat([a, b], -1),
    "sum": lambda a, b: a + b,
    "mean": lambda a, b: (a + b) / 2,
    "stacked mean": lambda a, b: torch.stack([a, b]).mean(0),
}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Layers(nn.Module):
    def __init__(self, width=DIM, final=True):
        super().__init__()
        self.looks = nn.ModuleList([Attention() for _ in range(DEPTH)])
        self.mlps = nn.ModuleList([FeedForward() for _ in range(DEPTH)])
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(2 * DEPTH)])
        self.final = nn.LayerNorm(width) if final else nn.Identity()
        self.head = nn.Linear(width, VOCAB)

    def parts(self):
        norms = iter(self.norms)
        for look, mlp in zip(self.looks, self.mlps, strict=True):
            yield nn.Sequential(next(norms), look), nn.Sequential(next(norms), mlp)


class Streams(Layers):
    """Both streams start with the same tensor, as in the Reformer."""

    def __init__(self, end, final=True):
        super().__init__(2 * DIM if end == "side by side" else DIM, final)
        self.table, self.end = nn.Embedding(VOCAB, DIM), ENDS[end]

    def forward(self, tokens):
        a = b = self.table(tokens)
        for f, g in self.parts():
            a = a + f(b)
            b = b + g(a)
        return self.head(self.final(self.end(a, b)))


class Halves(Layers):
    """Split and concatenated in every layer, as in RevNet."""

    def __init__(self, cut):
        super().__init__(2 * DIM)
        self.table, self.cut = nn.Embedding(VOCAB, 2 * DIM), cut

    def forward(self, tokens):
        x = self.table(tokens)
        for f, g in self.parts():
            a, b = self.cut(x)
            a = a + f(b)
            x = torch.cat([a, b + g(a)], -1)
        return self.head(self.final(x))


PAIR = [("self-attention", "pre_ln", ("reversible",)), ("feed-forward", "pre_ln", ("reversible",))]


def blocks(report):
    return [(b.kind, b.wiring, b.tags) for b in report.blocks]


@pytest.mark.parametrize("end", ENDS)
def test_two_streams(end):
    report = addnorm.doctor(Streams(end), ids())
    assert blocks(report) == PAIR * DEPTH
    assert [b.stream for b in report.blocks] == [0, 1] * DEPTH
    assert report.findings == () and report.odd == ()
    assert [line.split(",")[0] for line in report.stacks] == [
        "3 x [self-attention]", "3 x [feed-forward]",
    ]  # fmt: skip
    assert report.arrangement == "pre_ln"


@pytest.mark.parametrize("cut", [lambda x: x.chunk(2, -1), lambda x: (x[..., :DIM], x[..., DIM:])])
def test_two_halves_of_one_stream(cut):
    report = addnorm.doctor(Halves(cut), ids())
    assert blocks(report) == PAIR * DEPTH
    assert {b.stream for b in report.blocks} == {0}
    assert report.stacks[0].startswith("3 x [self-attention, feed-forward], Pre-LN with LayerNorm")
    assert report.findings == () and report.odd == ()


def test_without_a_final_norm():
    report = addnorm.doctor(Streams("side by side", final=False), ids())
    assert {f.rule for f in report.findings} == {"missing_final_norm"}
    assert all("no final norm" in line for line in report.stacks)
    assert report.closest() == "pre_ln (gpt2, vit), except for missing_final_norm"


class Nested(Layers):
    """x + g(x + f(x)): a sum inside a branch, whose result may be returned as well."""

    def __init__(self, shown):
        super().__init__()
        self.table, self.shown = nn.Embedding(VOCAB, DIM), shown

    def forward(self, tokens):
        x, seen = self.table(tokens), []
        for f, g in self.parts():
            seen.append(x + f(x))
            x = x + g(seen[-1])
        y = self.head(self.final(x))
        return (y, torch.stack(seen)) if self.shown else y


@pytest.mark.parametrize("shown", [False, True])
def test_sum_inside_branch_is_not_reversible(shown):
    report = addnorm.doctor(Nested(shown), ids())
    assert not any("reversible" in b.tags for b in (*report.blocks, *report.inner))
