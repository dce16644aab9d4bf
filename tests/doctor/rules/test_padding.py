"""Padding declared by masks, lengths and ids, in both polarities."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.historic.cases import (
    LENGTH,
    VOCAB,
    Classifier,
    D,
    PreLayer,
    Tokens,
    ids,
    lengths,
    log_mask,
    padded_ids,
    valid,
    vectors,
)

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def leaks(model, example):
    torch.manual_seed(0)
    rules = ["padding_leak"]
    return [f.evidence["mask"] for f in addnorm.doctor(model, example, rules=rules).findings]


class Encoder(nn.Module):
    """Mask of MultiheadAttention, where True hides, from ids or from a mask of valid tokens."""

    def __init__(self, inverted):
        super().__init__()
        self.table, self.inverted = nn.Embedding(VOCAB, D, padding_idx=0), inverted
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(D, 3, 48, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(D)

    def forward(self, tokens, mask=None):
        hidden = tokens == 0 if mask is None else ~mask.bool()
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~hidden if self.inverted else hidden)
        return self.norm(x)


EXAMPLES = {
    "ids with padding": lambda: padded_ids(),
    "ids without padding": lambda: ids(),
    "mask with a full row": lambda: (ids(), valid()),
    "mask of ones": lambda: (ids(), torch.ones(3, LENGTH)),
    "short rows and padding ids": lambda: (padded_ids()[1:], valid()[1:]),
}


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("name", EXAMPLES)
def test_polarity_of_a_mask_is_known(name, inverted):
    assert bool(leaks(Encoder(inverted), EXAMPLES[name]())) is inverted


class Pooled(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.embedding, self.layer, self.norm = Tokens(), PreLayer(), nn.LayerNorm(D)
        self.score, self.way = nn.Linear(D, 1), way

    def forward(self, tokens, mask):
        x = self.norm(self.layer(self.embedding(tokens), bias=log_mask(mask)[:, None, None]))
        keep = mask.float()[..., None]
        pools = {
            "mean of all positions": lambda: (x * keep).mean(1),
            "attention": lambda: (self.score(x).softmax(1) * x).sum(1),
            "last": lambda: x[:, -1],
            "mean": lambda: (x * keep).sum(1) / keep.sum(1),
            "first": lambda: x[:, 0],
            "max": lambda: x.masked_fill(keep == 0, -1e9).amax(1),
        }
        return pools[self.way]()


@pytest.mark.parametrize("mask", [valid(), torch.ones(3, LENGTH).long()], ids=["mixed", "ones"])
@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("mean of all positions", True),
        ("attention", True),
        ("last", True),
        ("mean", False),
        ("first", False),
        ("max", False),
    ],
)
def test_pooling_over_padding_is_found(way, expected, mask):
    assert bool(leaks(Pooled(way), (ids(), mask))) is expected


class Limited(nn.Module):
    """Layers that receive lengths, compared as a tensor or read as numbers."""

    def __init__(self, ignored, as_numbers):
        super().__init__()
        self.layers = nn.ModuleList(PreLayer() for _ in range(2))
        self.norm, self.ignored, self.as_numbers = nn.LayerNorm(D), ignored, as_numbers

    def forward(self, x, lengths):
        rows = lengths.tolist() if self.as_numbers else lengths
        keep = torch.stack([torch.arange(x.shape[1]) < row for row in rows])
        for number, layer in enumerate(self.layers):
            is_ignored = self.ignored and number > 0
            x = layer(x, bias=None if is_ignored else log_mask(keep)[:, None, None])
        return self.norm(x)


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("as_numbers", [False, True])
@pytest.mark.parametrize("rows", [lengths(), torch.full((3,), LENGTH)], ids=["mixed", "full"])
def test_lengths_are_checked(ignored, as_numbers, rows):
    assert bool(leaks(Limited(ignored, as_numbers), (vectors(), rows))) is ignored


def test_numbers_that_are_looked_up_are_not_lengths():
    class Timed(nn.Module):
        def __init__(self):
            super().__init__()
            self.times, self.layer = nn.Embedding(100, D), PreLayer()

        def forward(self, x, time):
            return self.layer(x + self.times(time)[:, None])

    assert leaks(Timed(), (vectors(), torch.tensor([LENGTH, 3, 2]))) == []


@pytest.mark.parametrize("transposed", [False, True])
def test_additive_masks_are_checked(transposed):
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.layer, self.norm = Tokens(), PreLayer(), nn.LayerNorm(D)

        def forward(self, tokens, bias):
            x = self.layer(self.embedding(tokens), bias=bias.mT if transposed else bias)
            return self.norm(x)

    example = (ids(), log_mask(valid())[:, None, None])
    assert bool(leaks(Biased(), example)) is transposed


@pytest.mark.parametrize("ignored", [False, True])
def test_valid_positions_of_a_shorter_output_are_compared(ignored):
    class Patched(nn.Module):
        """Two tokens become one; those of padding may change, valid ones may not."""

        def __init__(self):
            super().__init__()
            self.patch, self.layer, self.norm = nn.Conv1d(D, D, 2, 2), PreLayer(), nn.LayerNorm(D)

        def forward(self, x, mask):
            bias = None if ignored else log_mask(mask[:, 1::2])[:, None, None]
            return self.norm(self.layer(self.patch(x.mT).mT, bias=bias))

    assert bool(leaks(Patched(), (vectors(), valid()))) is ignored


def test_end_of_sentence_is_not_padding():
    class Ended(Classifier):
        def forward(self, tokens):
            x = super().forward(tokens)
            return x * (tokens != 2)[..., None]

    assert leaks(Ended([PreLayer()], nn.LayerNorm(D)), ids()) == []
