"""Norms that get no gradient while the layers around them do."""

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
    findings,
    ids,
    rules,
    stack,
    vectors,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def no_grad(norm, x):
    with torch.no_grad():
        return norm(x)


def with_copied_weights(norm, x):
    return F.layer_norm(x, (DIM,), norm.weight.data, norm.bias.data)


def with_copied_weights_by_hand(norm, x):
    y = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)
    return norm.a_2.data * y + norm.b_2.data


CUTS = {
    "detached": (nn.LayerNorm, lambda norm, x: norm(x).detach()),
    "detached by hand": (HandNorm, lambda norm, x: norm(x).detach()),
    "detached rms": (HandRMS, lambda norm, x: norm(x).detach()),
    "no_grad": (nn.LayerNorm, no_grad),
    "no_grad by hand": (HandNorm, no_grad),
    "a copy of the weights": (nn.LayerNorm, with_copied_weights),
    "a copy by hand": (HandNorm, with_copied_weights_by_hand),
    "a detached weight": (
        nn.RMSNorm, lambda norm, x: F.rms_norm(x, (DIM,), norm.weight.detach(), 1e-6)
    ),
}  # fmt: skip


class Block(nn.Module):
    """Pre-LN whose first norm may be applied without gradient."""

    def __init__(self, norm, apply_norm):
        super().__init__()
        self.one, self.two, self.apply_norm = norm(DIM), norm(DIM), apply_norm
        self.look, self.mlp = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.look(self.apply_norm(self.one, x))
        return x + self.mlp(self.two(x))


@pytest.mark.parametrize("name", CUTS)
def test_norm_without_gradient_is_found(name):
    norm, apply_norm = CUTS[name]
    model = Model([Block(norm, apply_norm) for _ in range(DEPTH)], nn.LayerNorm(DIM))
    found = addnorm.doctor(model, ids()).findings
    assert {f.rule for f in found} == {"inert_norm"}
    assert {f.severity for f in found} == {"error"}
    assert len(found) == DEPTH
    for layer, finding in enumerate(found):
        assert "get no gradient, although the layers before and after it do" in finding.message
        assert all(n.startswith(f"blocks.{layer}.one.") for n in finding.evidence["weights"])


def test_norm_of_the_input_without_gradient_is_found():
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.mlp = nn.LayerNorm(DIM), FeedForward()

        def forward(self, x):
            return x + self.mlp(self.norm(x).detach())

    assert rules(One(), vectors()) == {"inert_norm"}


class Frozen(nn.Module):
    """Frozen trunk with a trainable head."""

    def __init__(self, flag, no_grad):
        super().__init__()
        self.trunk = Model(stack(PreBlock), nn.LayerNorm(DIM), head=False).requires_grad_(flag)
        self.no_grad, self.head = no_grad, nn.Linear(DIM, VOCAB)

    def forward(self, tokens):
        with torch.set_grad_enabled(not self.no_grad):
            features = self.trunk(tokens)
        return self.head(features.detach() if self.no_grad is None else features)


class Teacher(nn.Module):
    """Student and teacher, which runs without gradient."""

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


class TwoOutputs(nn.Module):
    """Two outputs with a norm each and a shared head."""

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


def frozen_and_detached():
    model = Model(
        [Block(nn.LayerNorm, lambda norm, x: norm(x).detach()) for _ in range(2)], nn.LayerNorm(DIM)
    )
    for block in model.blocks:
        block.one.requires_grad_(False)
        block.two.requires_grad_(False)
    return model


def plain(dim):
    return nn.LayerNorm(dim, elementwise_affine=False)


HEALTHY = {
    "frozen": lambda: Frozen(False, False),
    "stopped": lambda: Frozen(True, True),
    "detached trunk": lambda: Frozen(True, None),
    "teacher": Teacher,
    "one norm frozen": one_frozen,
    "frozen norms, detached": frozen_and_detached,
    "no weights": lambda: Model(
        [Block(plain, lambda norm, x: norm(x).detach()) for _ in range(2)], nn.LayerNorm(DIM)
    ),
    "checkpointed": lambda: Model([Checkpointed() for _ in range(2)], nn.LayerNorm(DIM)),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_intended_freezing_is_not_reported(name):
    assert [f for f in findings(HEALTHY[name]()) if f.severity != "info"] == []


def test_output_outside_the_loss_is_not_reported():
    assert "inert_norm" not in rules(TwoOutputs(), ids(), loss=lambda out: out[0].square().mean())
