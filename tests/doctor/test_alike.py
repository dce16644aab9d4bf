"""Healthy models that look like a mistake: silence, and a word where the mistake is planted."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.small import DIM, LENGTH, VOCAB, FeedForward, HandNorm, Model, PreBlock, ids, stack


def findings(model, example=None, **options):
    return addnorm.doctor(model, ids() if example is None else example, **options).findings


def rules(model, example=None, **options):
    return {finding.rule for finding in findings(model, example, **options)}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# where the examples stand


class Laid(Model):
    """The same numbers, laid out otherwise."""

    def __init__(self, way, norm=nn.LayerNorm, **options):
        super().__init__(stack(PreBlock, norm=norm, **options), nn.LayerNorm(DIM))
        self.way = way

    def forward(self, tokens, mask=None):
        return self.way(super().forward(tokens, mask))


LAID = {
    "flat": lambda y: y.reshape(-1, VOCAB),
    "flat, tokens first": lambda y: y.transpose(0, 1).reshape(-1, VOCAB),
    "tokens first": lambda y: y.transpose(0, 1),
    "vocabulary first": lambda y: y.mT,
    "as many layers as examples": lambda y: torch.stack([y, 2 * y]),
    "more layers than examples": lambda y: torch.stack([y, 2 * y, 3 * y]),
}


@pytest.mark.parametrize("way", LAID)
def test_examples_are_found_wherever_they_stand(way):
    assert rules(Laid(LAID[way])) == set()
    assert "batch_leak" in rules(Laid(LAID[way], norm=lambda d: HandNorm(d, axis=0)))


@pytest.mark.parametrize("way", [way for way in LAID if way != "vocabulary first"])
def test_tokens_are_found_wherever_they_stand(way):
    assert rules(Laid(LAID[way], causal=True)) == set()
    model = Laid(LAID[way], causal=True)
    model.blocks[1].attention.causal = False
    assert rules(model) == {"future_leak"}


@pytest.mark.parametrize("way", LAID)
def test_a_hidden_token_may_change_its_own_output(way):
    example = (ids(), torch.ones_like(ids()))
    assert rules(Laid(LAID[way]), example) == set()


def test_one_example_is_enough_to_see_the_future():
    model = Laid(LAID["flat"], causal=True)
    assert rules(model, ids()[:1]) == set()
    model.blocks[1].attention.causal = False
    assert rules(model, ids()[:1]) == {"future_leak"}


# matrices across tokens


class Mixing(nn.Module):
    """x + mix(norm(x)), tokens mixed by a matrix; then a feed-forward."""

    def __init__(self, way, norm):
        super().__init__()
        length = DIM if "square" in way else LENGTH
        self.one, self.two, self.way = norm(DIM), norm(DIM), way
        self.mix = nn.Parameter(torch.randn(length, length) / length)
        self.ffn = FeedForward()

    def forward(self, x, mask=None):
        h = self.one(x)
        if "einsum" in self.way:
            h = torch.einsum("btd,ts->bsd", h, self.mix)
        elif "turned" in self.way:
            h = (h.transpose(1, 2) @ self.mix).transpose(1, 2)
        else:
            h = self.mix @ h
        x = x + h
        return x + self.ffn(self.two(x))


@pytest.mark.parametrize("square", ["", " square"])
@pytest.mark.parametrize("way", ["before", "einsum", "turned"])
def test_a_norm_before_a_matrix_across_tokens_is_not_over_them(way, square):
    x = torch.randn(2, DIM if square else LENGTH, DIM)
    for norm, wanted in ((nn.LayerNorm, []), (lambda d: HandNorm(d, axis=1), ["0.two", "1.two"])):
        model = nn.Sequential(*[Mixing(way + square, norm) for _ in range(2)], nn.LayerNorm(DIM))
        found = [f.path for f in findings(model, x, rules=["wrong_axis"])]
        assert found == ([] if square else wanted)  # a square tells nobody which axis is which
