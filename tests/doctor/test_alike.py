"""Healthy models that look like a mistake: silence, and a word where the mistake is planted."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.small import DIM, VOCAB, HandNorm, Model, PreBlock, ids, stack


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
