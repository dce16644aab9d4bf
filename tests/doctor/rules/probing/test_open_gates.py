"""Leaks behind branches, gates and heads that are initialized to 0."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import BATCH, DIM, LENGTH, Model, PreBlock, ids, rules, stack, vectors
from tests.doctor.state_checksum import state

INACTIVE = "leaks through the branches at 'the model itself' were not checked"


def zero_projections(model, *, head=False):
    """Set the last matrix of every branch to zero, a common initialization."""
    for block in model.blocks:
        for last in (block.attention.proj, block.ffn[2]):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
    if head:
        nn.init.zeros_(model.head.weight)
        nn.init.zeros_(model.head.bias)
    return model


def gpt(*causal):
    torch.manual_seed(0)
    return Model([PreBlock(causal=each) for each in causal], nn.LayerNorm(DIM))


@pytest.mark.parametrize("head", [False, True])
def test_missing_causal_mask_is_found_behind_zero_projections(head):
    model = zero_projections(gpt(True, False, True), head=head)
    before = state(model)
    (found,) = [f for f in addnorm.doctor(model, ids()).findings if f.rule == "future_leak"]
    assert "blocks.0.attention.proj.weight" in found.evidence["filled for the probe"]
    assert state(model) == before
    assert "future_leak" not in rules(zero_projections(gpt(True, True, True), head=head))


class IgnoresMask(PreBlock):
    def forward(self, x, mask=None):
        return super().forward(x)


@pytest.mark.parametrize(("block", "leaks"), [(PreBlock, False), (IgnoresMask, True)])
def test_ignored_mask_is_found_behind_zero_projections(block, leaks):
    torch.manual_seed(0)
    model = zero_projections(Model([block() for _ in range(2)], nn.LayerNorm(DIM)))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, 5:] = 0
    assert ("padding_leak" in rules(model, (ids(), mask))) is leaks


class Gated(nn.Module):
    """x + gate * attention(x), where attention may use the wrong batch axis."""

    def __init__(self, gate, *, batch_first, learns=True, offset=0.0):
        super().__init__()
        self.place = nn.Parameter(torch.randn(1, LENGTH, DIM))
        self.look = nn.MultiheadAttention(DIM, 3, batch_first=batch_first)
        self.gate, self.offset = nn.Parameter(gate, requires_grad=learns), offset

    def forward(self, x):
        x = x + self.place
        gate = self.gate + self.offset
        return x + gate * self.look(x, x, x, need_weights=False)[0]


GATES = {
    "rezero": torch.zeros(()),
    "layer scale": torch.full((DIM,), 1e-6),
    "layer scale of zeros": torch.zeros(1, 1, DIM),
    "open": torch.ones(()),
}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("batch_first", [True, False])
def test_batch_leak_is_found_behind_closed_gate(gate, batch_first):
    torch.manual_seed(0)
    for offset in (0.0, 1.0):
        model = Gated(GATES[gate] - offset, batch_first=batch_first, offset=offset)
        assert ("batch_leak" in rules(model, vectors())) is not batch_first


def test_frozen_gate_stays_closed_and_is_noted():
    torch.manual_seed(0)
    report = addnorm.doctor(
        Gated(torch.zeros(()), batch_first=False, learns=False), vectors(), rules=["batch_leak"]
    )
    assert report.findings == ()
    assert report.notes[0].startswith(INACTIVE)


def test_zero_biases_are_not_gates():
    torch.manual_seed(0)
    model = gpt(True, False)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(weight)
    (found,) = [f for f in addnorm.doctor(model, ids()).findings if f.rule == "future_leak"]
    assert set(found.evidence) == {"change", "first token", "attention without mask"}


class Brittle(nn.Module):
    """Fails with any other weights."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(stack(PreBlock, 1, causal=True))
        self.extra = nn.Parameter(torch.zeros(DIM, DIM))

    def forward(self, x):
        assert not self.extra.any()
        return self.blocks[0](x) + x @ self.extra


def test_model_that_fails_with_filled_weights_runs_unchanged():
    torch.manual_seed(0)
    report = addnorm.doctor(Brittle(), vectors(), rules=["batch_leak", "future_leak"])
    (note,) = report.notes
    assert report.findings == () and note.startswith(INACTIVE)


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(DIM, DIM)

    def forward(self, x):
        return (x + self.f(x)) * 0


def test_constant_output_is_noted():
    report = addnorm.doctor(Constant(), vectors(), rules=["batch_leak"])
    assert "leaks were not checked: no output depends on the changed input" in report.notes
