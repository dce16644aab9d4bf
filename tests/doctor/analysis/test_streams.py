"""Streams that start, cross and nest in unusual ways."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import addnorm
from tests.doctor.models.tiny import DIM, VOCAB, FeedForward, Model, PreBlock, ids, stack, vectors


def attention():
    return nn.MultiheadAttention(DIM, 3, batch_first=True)


class Latents(nn.Module):
    """Learned latents attend to the input, as in Perceiver."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, DIM))
        self.look, self.mlp = attention(), FeedForward()
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(4)])

    def forward(self, x):
        z = self.latents.expand(len(x), -1, -1)
        keys = self.norms[0](x)
        z = z + self.look(self.norms[1](z), keys, keys, need_weights=False)[0]
        z = z + self.mlp(self.norms[2](z))
        return self.norms[3](z)


def test_learned_latents_are_a_stream():
    report = addnorm.doctor(Latents(), vectors())
    assert [(b.kind, b.wiring) for b in report.blocks] == [
        ("cross-attention", "pre_ln"),
        ("feed-forward", "pre_ln"),
    ]
    assert report.findings == ()


class Reversible(nn.Module):
    """y1 = x1 + f(x2), y2 = x2 + g(y1)."""

    def __init__(self, depth=3):
        super().__init__()
        self.widen, self.final = nn.Linear(DIM, 2 * DIM), nn.LayerNorm(2 * DIM)
        self.looks = nn.ModuleList([attention() for _ in range(depth)])
        self.mlps = nn.ModuleList([FeedForward() for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(DIM) for _ in range(2 * depth)])

    def forward(self, x):
        a, b = self.widen(x).chunk(2, -1)
        for i, (look, mlp) in enumerate(zip(self.looks, self.mlps, strict=True)):
            h = self.norms[2 * i](b)
            a = a + look(h, h, h, need_weights=False)[0]
            b = b + mlp(self.norms[2 * i + 1](a))
        return self.final(torch.cat([a, b], -1))


def test_reversible_sums_are_two_streams():
    report = addnorm.doctor(Reversible(), vectors())
    assert [b.wiring for b in report.blocks] == ["pre_ln"] * 6
    assert [b.stream for b in report.blocks] == [0, 1] * 3
    assert {b.tags for b in report.blocks[2:]} == {("reversible",)}
    assert report.findings == ()


class Group(nn.Module):
    """Residual blocks inside a residual group with a matrix at its end."""

    def __init__(self):
        super().__init__()
        self.blocks, self.last = nn.Sequential(*stack(PreBlock, 2)), nn.Linear(DIM, DIM)

    def forward(self, x):
        return x + self.last(self.blocks(x))


def test_residual_groups():
    report = addnorm.doctor(nn.Sequential(Group(), Group(), nn.LayerNorm(DIM)), vectors())
    outer = [b for b in report.blocks if "long-skip" in b.tags]
    inner = [b for b in report.blocks if "long-skip" not in b.tags]
    assert len(outer) == 2 and len(inner) == 8
    assert {b.wiring for b in inner} == {"pre_ln"}


class EmbeddingForms(Model):
    """Embedding by indexing, or by a product with one-hot rows."""

    def __init__(self, way):
        super().__init__(stack(PreBlock), nn.LayerNorm(DIM))
        self.way = way

    def forward(self, tokens):
        if self.way == "index":
            x = self.table.weight[tokens]
        else:
            x = F.one_hot(tokens, VOCAB).float() @ self.table.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.final(x))


@pytest.mark.parametrize("way", ["index", "one hot"])
def test_other_forms_of_embedding(way):
    report = addnorm.doctor(EmbeddingForms(way), ids())
    assert [b.wiring for b in report.blocks] == ["pre_ln"] * 6


class Experts(nn.Module):
    """A softmax router, experts, and a shared expert."""

    def __init__(self):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(DIM), nn.Linear(DIM, 4)
        self.experts = nn.ModuleList([FeedForward() for _ in range(4)])
        self.shared = FeedForward()

    def forward(self, x):
        h = self.norm(x)
        weights = self.router(h).softmax(-1)
        found = sum(weights[..., i : i + 1] * e(h) for i, e in enumerate(self.experts))
        return x + found + self.shared(h)


def test_shared_expert_is_not_attention():
    model = nn.Sequential(Experts(), Experts(), nn.LayerNorm(DIM))
    report = addnorm.doctor(model, vectors())
    assert {b.kind for b in report.blocks} == {"feed-forward"}
    assert {b.wiring for b in report.blocks} == {"pre_ln"}


class Sinks(nn.Module):
    """Attention with a learned sink."""

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(DIM),
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, DIM),
        )
        self.sink = nn.Parameter(torch.zeros(1, 1, 1))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = torch.cat([q @ k.mT / 5, self.sink.expand(*x.shape[:2], 1)], -1)
        return x + self.out(scores.softmax(-1)[..., :-1] @ v)


def test_attention_with_sinks_is_attention():
    report = addnorm.doctor(nn.Sequential(Sinks(), Sinks(), nn.LayerNorm(DIM)), vectors())
    assert {b.kind for b in report.blocks} == {"self-attention"}


@pytest.mark.slow
def test_very_deep_model():
    torch.manual_seed(0)
    report = addnorm.doctor(Model(stack(PreBlock, 96), nn.LayerNorm(DIM)), ids(), rules=())
    assert len(report.blocks) == 192
    assert {b.wiring for b in report.blocks} == {"pre_ln"}


@pytest.mark.parametrize("model", [nn.Identity(), nn.Sequential(), nn.Flatten()])
def test_empty_models(model):
    report = addnorm.doctor(model, torch.randn(2, 3))
    assert report.blocks == () and report.findings == () and report.fits == ()
    assert report.notes[0] == "gradients: no output depends on a weight"
