"""Healthy models that look like a mistake: silence, and a word where the mistake is planted."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.small import (
    DIM,
    LENGTH,
    VOCAB,
    FeedForward,
    HandNorm,
    Model,
    PreBlock,
    ids,
    stack,
)


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


# masks, however they are spelt


class Masked(Model):
    """Attention that is told which tokens are padding, or is deaf; and types of tokens."""

    def __init__(self, deaf=False, padding=False):
        super().__init__(stack(PreBlock), nn.LayerNorm(DIM))
        self.types, self.deaf, self.padding = nn.Embedding(2, DIM), deaf, padding

    def forward(self, tokens, types=None, mask=None):
        x = self.table(tokens) + (self.types(types) if types is not None else 0)
        for block in self.blocks:
            keep = mask if not self.padding or mask is None else ~mask.bool()
            x = block(x) if self.deaf or keep is None else block(x, keep)
        return self.head(self.final(x))


def marks(*lengths):
    return torch.stack([torch.arange(LENGTH) < length for length in lengths])


MASKS = {
    "all valid": (marks(LENGTH, LENGTH), False),
    "ones": (marks(LENGTH, LENGTH).long(), False),
    "no padding": (~marks(LENGTH, LENGTH), True),
    "some valid": (marks(4, LENGTH).long(), False),
    "some valid, both short": (marks(4, 6), False),
    "some padding": (~marks(4, LENGTH), True),
    "floats": (marks(4, LENGTH).float(), False),
}


@pytest.mark.parametrize("deaf", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_masks_of_any_spelling_are_tried(name, deaf):
    mask, padding = MASKS[name]
    found = rules(Masked(deaf, padding), {"tokens": ids(), "mask": mask})
    assert found == ({"padding_leak"} if deaf else set())


@pytest.mark.parametrize("fill", [0, 1])
def test_types_of_tokens_are_no_mask(fill):
    example = {"tokens": ids(), "types": torch.full_like(ids(), fill)}
    assert rules(Masked(), example) == set()
    example["mask"] = torch.ones_like(ids())
    assert rules(Masked(), example) == set()
    assert rules(Masked(deaf=True), example) == {"padding_leak"}


def test_tokens_of_two_values_are_no_mask():
    model = Laid(LAID["flat"], norm=lambda d: HandNorm(d, axis=0))
    assert "batch_leak" in rules(model, ids() % 2)


def test_what_could_not_be_tried_is_said():
    report = addnorm.doctor(Masked(), {"tokens": ids()[:1]})
    assert report.notes == ("leaks between examples were not tried: one example was given",)
    example = {"tokens": ids(), "mask": torch.zeros(ids().shape)}
    assert (
        "whether mask hides its tokens could not be tried"
        in addnorm.doctor(Masked(), example, rules=["padding_leak"]).notes
    )
