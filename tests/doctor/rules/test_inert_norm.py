"""Norms that cannot learn amid weights that do; silence where a whole branch was stopped."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import addnorm
from tests.doctor.models.tiny import (
    DEPTH,
    DIM,
    VOCAB,
    Attention,
    FeedForward,
    HandNorm,
    HandRMS,
    Model,
    PreBlock,
    ids,
    rules,
    stack,
    vectors,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def quiet(norm, x):
    with torch.no_grad():
        return norm(x)


def copied(norm, x):
    return F.layer_norm(x, (DIM,), norm.weight.data, norm.bias.data)


def by_hand(norm, x):
    y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
    return norm.a_2.data * y + norm.b_2.data


WAYS = {
    "detached": (nn.LayerNorm, lambda norm, x: norm(x).detach()),
    "detached by hand": (HandNorm, lambda norm, x: norm(x).detach()),
    "detached rms": (HandRMS, lambda norm, x: norm(x).detach()),
    "no_grad": (nn.LayerNorm, quiet),
    "no_grad by hand": (HandNorm, quiet),
    "a copy of the weights": (nn.LayerNorm, copied),
    "a copy by hand": (HandNorm, by_hand),
    "a detached weight": (
        nn.RMSNorm, lambda norm, x: F.rms_norm(x, (DIM,), norm.weight.detach(), 1e-6)
    ),
}  # fmt: skip


class Block(nn.Module):
    """Pre-LN; the way into the attention may cut its norm off."""

    def __init__(self, norm, way):
        super().__init__()
        self.one, self.two, self.way = norm(DIM), norm(DIM), way
        self.look, self.mlp = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.look(self.way(self.one, x))
        return x + self.mlp(self.two(x))


@pytest.mark.parametrize("name", WAYS)
def test_a_norm_without_gradient_is_found(name):
    norm, way = WAYS[name]
    model = Model([Block(norm, way) for _ in range(DEPTH)], nn.LayerNorm(DIM))
    found = addnorm.doctor(model, ids()).findings
    assert {f.rule for f in found} == {"inert_norm"}
    assert {f.severity for f in found} == {"error"}
    assert len(found) == DEPTH
    for layer, finding in enumerate(found):
        assert "get no gradient, although the layers before and after it do" in finding.message
        assert all(n.startswith(f"blocks.{layer}.one.") for n in finding.evidence["weights"])


def test_a_norm_right_behind_the_input_too():
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mlp = nn.LayerNorm(DIM), FeedForward()

        def forward(self, x):
            return x + self.mlp(self.norm(x).detach())

    assert rules(One(), vectors()) == {"inert_norm"}


class Frozen(nn.Module):
    """A stopped trunk of its own weights, and a head that learns."""

    def __init__(self, flag, quiet):
        super().__init__()
        self.trunk = Model(stack(PreBlock), nn.LayerNorm(DIM), head=False).requires_grad_(flag)
        self.quiet, self.head = quiet, nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        with torch.set_grad_enabled(not self.quiet):
            features = self.trunk(tokens)
        return self.head(features.detach() if self.quiet is None else features)


class Teacher(nn.Module):
    """A student, and a copy of it that only shows the way."""

    def __init__(self):
        super().__init__()
        self.student = Model(stack(PreBlock), nn.LayerNorm(DIM), head=False)
        self.teacher = copy.deepcopy(self.student)
        for weight in self.teacher.parameters():
            weight.data.mul_(0.9)
        self.predictor = nn.Linear(DIM, DIM)

    def forward(self, tokens):
        with torch.no_grad():
            goal = self.teacher(tokens)
        return self.predictor(self.student(tokens)), goal


class Two(nn.Module):
    """Two outputs through one tied head, each with a norm of its own."""

    def __init__(self):
        super().__init__()
        self.trunk = Model(stack(PreBlock), head=False)
        self.one, self.two = nn.LayerNorm(DIM), nn.LayerNorm(DIM)

    def forward(self, tokens):
        x = self.trunk(tokens)
        return tuple(F.linear(norm(x), self.trunk.table.weight) for norm in (self.one, self.two))


class Checkpointed(Block):
    def __init__(self):
        super().__init__(nn.LayerNorm, lambda norm, x: norm(x))

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


def one_frozen():
    model = Model(stack(PreBlock), nn.LayerNorm(DIM))
    model.blocks[0].one.requires_grad_(False)
    return model


def plain(dim):
    return nn.LayerNorm(dim, elementwise_affine=False)


HEALTHY = {
    "frozen": lambda: Frozen(False, False),
    "stopped": lambda: Frozen(True, True),
    "detached trunk": lambda: Frozen(True, None),
    "teacher": Teacher,
    "one norm frozen": one_frozen,
    "no weights": lambda: Model(
        [Block(plain, lambda norm, x: norm(x).detach()) for _ in range(2)], nn.LayerNorm(DIM)
    ),
    "checkpointed": lambda: Model([Checkpointed() for _ in range(2)], nn.LayerNorm(DIM)),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_silence_where_it_was_meant(name):
    assert rules(HEALTHY[name]()) == set()


def test_an_output_that_the_loss_leaves_out_is_no_cut():
    assert "inert_norm" not in rules(Two(), ids(), loss=lambda out: out[0].square().mean())
