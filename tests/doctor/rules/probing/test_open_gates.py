"""Leaks behind branches, gates and heads that start at 0 are found all the same."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import BATCH, DIM, LENGTH, Model, PreBlock, ids, rules, stack, vectors
from tests.doctor.state_checksum import state

INACTIVE = "leaks through the branches at 'the model itself' were not checked"


def zeroed(model, *, head=False):
    """Every branch ends with zeros, as many models start today."""
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
def test_a_missing_mask_is_found_behind_projections_of_zeros(head):
    model = zeroed(gpt(True, False, True), head=head)
    before = state(model)
    (found,) = [f for f in addnorm.doctor(model, ids()).findings if f.rule == "future_leak"]
    assert "blocks.0.attention.proj.weight" in found.evidence["filled for the probe"]
    assert state(model) == before
    assert "future_leak" not in rules(zeroed(gpt(True, True, True), head=head))


class Deaf(PreBlock):
    def forward(self, x, mask=None):
        return super().forward(x)


@pytest.mark.parametrize(("block", "leaks"), [(PreBlock, False), (Deaf, True)])
def test_a_mask_that_hides_nothing_is_found_behind_projections_of_zeros(block, leaks):
    torch.manual_seed(0)
    model = zeroed(Model([block() for _ in range(2)], nn.LayerNorm(DIM)))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, 5:] = 0
    assert ("padding_leak" in rules(model, (ids(), mask))) is leaks


class Gated(nn.Module):
    """x + gate * attention(x), where somebody forgot what comes first."""

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
def test_examples_that_meet_behind_a_closed_gate_are_found(gate, batch_first):
    torch.manual_seed(0)
    for offset in (0.0, 1.0):
        model = Gated(GATES[gate] - offset, batch_first=batch_first, offset=offset)
        assert ("batch_leak" in rules(model, vectors())) is not batch_first


def test_a_gate_that_never_learns_stays_closed_and_that_is_told():
    torch.manual_seed(0)
    report = addnorm.doctor(
        Gated(torch.zeros(()), batch_first=False, learns=False), vectors(), rules=["batch_leak"]
    )
    assert report.findings == ()
    assert report.notes[0].startswith(INACTIVE)


def test_biases_of_zeros_close_nothing():
    torch.manual_seed(0)
    model = gpt(True, False)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(weight)
    (found,) = [f for f in addnorm.doctor(model, ids()).findings if f.rule == "future_leak"]
    assert set(found.evidence) == {"change", "first token", "attention without mask"}


class Brittle(nn.Module):
    """Bears no other weights than it has."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(stack(PreBlock, 1, causal=True))
        self.extra = nn.Parameter(torch.zeros(DIM, DIM))

    def forward(self, x):
        assert not self.extra.any()
        return self.blocks[0](x) + x @ self.extra


def test_a_model_that_does_not_bear_to_be_filled_is_tried_as_it_is():
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


def test_an_output_that_never_moves_is_told():
    report = addnorm.doctor(Constant(), vectors(), rules=["batch_leak"])
    assert "leaks were not checked: no output depends on the changed input" in report.notes
