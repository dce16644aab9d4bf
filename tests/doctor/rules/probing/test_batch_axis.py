"""Inputs without a batch axis, or with one in an unusual position."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import DIM, VOCAB, FeedForward, ids, vectors

LEAKS = ["batch_leak", "future_leak"]
SINGLE_EXAMPLE = (
    "leaks between examples were not checked: the positions of the first input axis see"
)


class Attention(nn.Module):
    """Attention over the second to last axis, with any leading axes."""

    def __init__(self, causal=False):
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), causal

    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / DIM**0.5
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.out(scores.softmax(-1) @ v)


class Decoder(nn.Module):
    """(..., tokens) -> (..., tokens, logits)"""

    def __init__(self, *causal):
        super().__init__()
        self.table, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
        self.attentions = nn.ModuleList(Attention(each) for each in causal)
        self.ffns = nn.ModuleList(FeedForward() for _ in causal)
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * len(causal) + 1))

    def forward(self, tokens, segments=None):
        x = self.table(tokens)
        mask = None if segments is None else segments[:, None] == segments[None]
        for i, (look, ffn) in enumerate(zip(self.attentions, self.ffns, strict=True)):
            x = x + look(self.norms[2 * i](x), mask)
            x = x + ffn(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x))


def leak_results(model, example):
    report = addnorm.doctor(model, example, rules=LEAKS)
    return [f.rule for f in report.findings], [n for n in report.notes if n.startswith("leaks")]


def test_tokens_without_batch_axis_are_one_example():
    torch.manual_seed(0)
    one = ids()[0]
    rules, (note,) = leak_results(Decoder(True, True), one)
    assert rules == [] and note.startswith(SINGLE_EXAMPLE)
    assert leak_results(Decoder(True, False), one)[0] == ["future_leak"]
    assert leak_results(Decoder(True, True), one[None]) == (
        [], ["leaks between examples were not checked: the batch has one example"],
    )  # fmt: skip


def test_packed_tokens_are_one_example():
    torch.manual_seed(0)
    segments = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    rules, (note,) = leak_results(Decoder(True, True), (ids()[0], segments))
    assert rules == [] and note.startswith(SINGLE_EXAMPLE)


def test_torch_encoder_accepts_vectors_without_batch_axis():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(DIM, 3, 32, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, nn.LayerNorm(DIM), enable_nested_tensor=False)
    rules, (note,) = leak_results(model, vectors()[0])
    assert rules == [] and note.startswith(SINGLE_EXAMPLE)
    assert leak_results(model, vectors()) == ([], [])


class Nodes(nn.Module):
    """Graph network: attention to neighbors, or their mean."""

    def __init__(self, looks, near=None):
        super().__init__()
        self.register_buffer("near", near)
        self.attention, self.norm = Attention() if looks else FeedForward(), nn.LayerNorm(DIM)
        self.use_attention = looks

    def forward(self, x, near=None):
        near = self.near if near is None else near
        h = self.norm(x)
        if self.use_attention:
            return x + self.attention(h, near)
        share = near.float() / near.sum(-1, keepdim=True)
        return x + self.attention(share @ h)


@pytest.mark.parametrize("looks", [True, False])
def test_graph_nodes_are_one_example(looks):
    torch.manual_seed(0)
    near = (torch.rand(9, 9) > 0.5) | torch.eye(9, dtype=torch.bool)
    for model, more in ((Nodes(looks), (near,)), (Nodes(looks, near), ())):
        rules, (note,) = leak_results(model, (torch.randn(9, DIM), *more))
        assert rules == [] and note.startswith(SINGLE_EXAMPLE)


class Columns(nn.Module):
    """Table model with one token per column: (examples, columns) -> (examples)."""

    def __init__(self, batch_first):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, DIM)), nn.Parameter(torch.zeros(DIM))
        self.attention = nn.MultiheadAttention(DIM, 3, batch_first=batch_first)
        self.head = nn.Linear(DIM, 1)

    def forward(self, x):
        h = x[..., None] * self.weight + self.bias
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(h.mean(1))


@pytest.mark.parametrize("batch_first", [True, False])
def test_table_rows_are_examples(batch_first):
    torch.manual_seed(0)
    rules, notes = leak_results(Columns(batch_first), torch.randn(6, 5))
    assert (rules, notes) == ([] if batch_first else ["batch_leak"], [])


class Tutorial(nn.Module):
    """Positions of shape (tokens, 1, features), as in PyTorch's sequence-first tutorial."""

    def __init__(self, *, batch_first, turned=True):
        super().__init__()
        self.table, self.head = nn.Embedding(VOCAB, DIM), nn.Linear(DIM, VOCAB)
        self.register_buffer("place", torch.randn(20, 1, DIM))
        self.attention = nn.MultiheadAttention(DIM, 3, batch_first=batch_first)
        self.norm, self.turned = nn.LayerNorm(DIM), turned

    def forward(self, tokens):
        x = self.table(tokens.t() if self.turned else tokens)
        x = x + self.place[: len(x)]
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        x = self.head(x)
        return x.transpose(0, 1) if self.turned else x


def test_position_table_identifies_token_axis():
    torch.manual_seed(0)
    assert leak_results(Tutorial(batch_first=False), ids()) == ([], [])
    assert leak_results(Tutorial(batch_first=True), ids()) == (["batch_leak"], [])


def test_assumed_token_axis_is_noted():
    torch.manual_seed(0)
    rules, (note,) = leak_results(Tutorial(batch_first=False, turned=False), ids().t())
    assert rules == []
    assert note.startswith(
        "leaks between examples: the first axis of the inputs was taken as tokens"
    )


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder(True, True)

    def forward(self, tokens):
        return self.decoder(tokens).mean(-2)


def test_note_explains_why_future_leak_was_not_checked():
    torch.manual_seed(0)
    note = (
        "leaks from the future were not checked: no axis of the output has the length of the input"
    )
    assert leak_results(Pooled(), ids()) == ([], [note])
