"""Causal masks: wrong masks are found, and other patterns are not mistaken for them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import addnorm
from addnorm.doctor.trace.causal_masks import causal_offset
from tests.doctor.models.tiny import DIM, HEADS, LENGTH, FeedForward, Model, ids, rules

T = LENGTH


def later(offset=1):
    return torch.ones(T, T, dtype=torch.bool).triu(offset)


class Look(nn.Module):
    """Handwritten attention; `weigh` turns scores into weights."""

    def __init__(self, weigh):
        super().__init__()
        self.qkv, self.out, self.weigh = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), weigh
        self.table = nn.Parameter(torch.randn(HEADS, 2 * T))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = self.weigh(self, q @ k.mT / math.sqrt(d // HEADS)) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Whole(nn.Module):
    """`nn.MultiheadAttention` with a mask."""

    def __init__(self, mask):
        super().__init__()
        self.inner, self.mask = nn.MultiheadAttention(DIM, HEADS, batch_first=True), mask

    def forward(self, x):
        return self.inner(x, x, x, attn_mask=self.mask, need_weights=False)[0]


class Block(nn.Module):
    def __init__(self, look):
        super().__init__()
        self.look, self.mlp = look, FeedForward()
        self.one, self.two = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, x):
        x = x + self.look(self.one(x))
        return x + self.mlp(self.two(x))


def model(look):
    torch.manual_seed(0)
    return Model([Block(look()) for _ in range(2)], nn.LayerNorm(DIM))


def relative(m, scores):
    """Learned bias per distance, as in T5, in both directions."""
    place = torch.arange(T)
    return scores + m.table[:, place[None] - place[:, None] + T]


def distance():
    place = torch.arange(T)
    return (place[None] - place[:, None]).float()


def indexed(m, scores):
    scores = scores.clone()
    scores[:, :, later(2)] = -math.inf
    return scores.softmax(-1)


def prefix(many):
    mask = later()
    mask[:, :many] = False
    return mask


def chunks(size=2):
    """Causal between blocks; tokens of one block attend to each other."""
    block = torch.arange(T) // size
    return block[None] > block[:, None]


def masked(mask, fill=-math.inf):
    return lambda m, s: s.masked_fill(mask, fill).softmax(-1)


WRONG = {
    "one too late": masked(later(2)),
    "one too late, in place": lambda m, s: s.masked_fill_(later(2), -math.inf).softmax(-1),
    "one too late, by index": indexed,
    "one too late, where": lambda m, s: torch.where(later(2), -1e9, s).softmax(-1),
    "one too late, added": lambda m, s: (s + later(2).float() * -1e9).softmax(-1),
    "a sign forgotten": masked(later(), 1e-9),
    "minus one": lambda m, s: (s - later().float()).softmax(-1),
    "zeros before the softmax": lambda m, s: (s * (~later()).float()).softmax(-1),
    "tril before the softmax": lambda m, s: s.tril().softmax(-1),
    "behind the softmax": lambda m, s: s.softmax(-1).tril(),
    "behind the softmax, multiplied": lambda m, s: s.softmax(-1) * (~later()).float(),
    "beside a learned bias": lambda m, s: relative(m, s + later(2) * -1e4).softmax(-1),
    "in a learned bias": lambda m, s: (s + (relative(m, 0) + later(2) * -1e4)).softmax(-1),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_mask_in_every_layer_is_found(name):
    report = addnorm.doctor(model(lambda: Look(WRONG[name])), ids())
    (finding,) = (f for f in report.findings if f.rule == "future_leak")
    assert finding.severity == "error"
    assert finding.evidence["mask"] == ["blocks.0.look", "blocks.1.look"]
    late = "late" in name or "learned" in name
    assert finding.evidence["begins ahead by"] == (2 if late else 1)
    assert ("one token too late" in finding.message) == late
    assert [b.kind for b in report.blocks] == ["self-attention", "feed-forward"] * 2


@pytest.mark.parametrize("mask", [later(2), later(2).float() * -1e9, later().float() * -1])
def test_wrong_mask_in_multihead_attention_is_found(mask):
    assert rules(model(lambda: Whole(mask))) == {"future_leak"}


HEALTHY = {
    "causal": masked(later()),
    "shared out again": lambda m, s: (w := s.softmax(-1).tril()) / w.sum(-1, keepdim=True),
    "bidirectional": lambda m, s: s.softmax(-1),
    "relative positions": lambda m, s: relative(m, s).softmax(-1),
    "ALiBi, both ways": lambda m, s: (s - distance().abs() * 0.5).softmax(-1),
    "signed distances": lambda m, s: (s - distance() * 0.5).softmax(-1),
    "a window": masked(distance().abs() > 2),
    "prefix of two": masked(prefix(2)),
    "prefix of four": masked(prefix(4)),
    "chunks": masked(chunks()),
    "blocks apart": masked(chunks() | chunks().mT),
    "the last is hidden": masked(torch.arange(T)[None].expand(T, T) >= T - 1),
    "scattered": masked(torch.rand(T, T, generator=torch.Generator().manual_seed(3)) > 0.7),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_other_patterns_are_not_reported(name):
    report = addnorm.doctor(model(lambda: Look(HEALTHY[name])), ids())
    assert report.findings == ()
    assert [b.kind for b in report.blocks] == ["self-attention", "feed-forward"] * 2


def test_mask_that_hides_the_past_is_inverted():
    assert rules(model(lambda: Look(masked(later().mT)))) == {"inverted_mask"}


def test_windows_of_shifted_rows():
    """Shifted windows of Swin, some with a mask."""

    class Windows(Look):
        def forward(self, x):
            wide = F.pad(x, (0, 0, 0, 1)).roll(2, 1)
            return (
                super()
                .forward(wide.unflatten(1, (2, 4)).flatten(0, 1))
                .view(len(x), -1, DIM)
                .roll(-2, 1)[:, :T]
            )

    apart = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]])
    mask = (apart[:, None] != apart[:, :, None]).repeat(2, 1, 1)[:, None]
    assert rules(model(lambda: Windows(masked(mask, -100.0)))) == set()


def test_triangle_over_features_is_not_a_mask():
    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(DIM, T), nn.Linear(T, DIM)
            self.look = Look(lambda m, s: s.softmax(-1))

        def forward(self, x):
            return self.look(x) + self.down(self.up(x) @ torch.ones(T, T).triu())

    assert "future_leak" not in rules(model(Sums))


def test_causal_offset():
    assert causal_offset(later()) == causal_offset(~later()) == 1
    assert causal_offset(later(2).float() * -1e9) == 2
    assert causal_offset(torch.full((T, T), -math.inf).triu(1)) == 1
    assert causal_offset(later(3)) == 0
    assert causal_offset(torch.ones(T, T)) == causal_offset(torch.zeros(T, T)) == 0
    assert causal_offset(later().int()) == 0, "indices are no mask"
    assert causal_offset(torch.ones(3, 3).tril()) == 0, "too small to tell"
    padded = later().expand(2, 1, T, T).clone()
    padded[1, :, :, -2:] = True
    assert causal_offset(padded) == 1
    both = torch.stack([later(), ~later() & later()])
    assert causal_offset(both) == 0, "one of two heads only"
