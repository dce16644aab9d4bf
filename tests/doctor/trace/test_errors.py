"""User code that exits, and outputs that are not finite."""

import math
import sys

import pytest
import torch
from torch import nn

import addnorm
from addnorm.core.errors import UserError
from addnorm.doctor.loading.example_inputs import guess_inputs


class Leaves(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        sys.exit(0)


class Block(nn.Module):
    """A Pre-LN block after a matrix that may contain NaN."""

    def __init__(self, value=0.0):
        super().__init__()
        self.norm, self.linear, self.final = (
            nn.LayerNorm(8),
            nn.Linear(8, 8),
            nn.LayerNorm(8),
        )
        self.head = nn.Linear(8, 5)
        with torch.no_grad():
            self.head.weight[0, 0] = value

    def forward(self, x):
        return self.head(self.final(x + self.linear(self.norm(x))))


def test_system_exit_in_forward_is_user_error():
    with pytest.raises(UserError, match="SystemExit"):
        addnorm.doctor(Leaves(), torch.ones(2, 4))
    with pytest.raises(UserError, match="SystemExit"):
        guess_inputs(Leaves())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_outputs_are_noted(value):
    torch.manual_seed(0)
    report = addnorm.doctor(Block(value), torch.randn(3, 6, 8))
    assert any("are NaN or infinite" in note for note in report.notes)
    assert not any("could not be applied" in note for note in report.notes)
    found = {finding.rule for finding in report.findings} - {"inert_norm"}
    assert found == ({"nan_output"} if math.isnan(value) else set())
    healthy = addnorm.doctor(Block(0.5), torch.randn(3, 6, 8))
    assert not any("NaN or infinite" in note for note in healthy.notes)
