"""Arguments of `addnorm.doctor`: invalid values raise one-line errors; notes explain gaps."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import ids
from tests.doctor.state_checksum import pre


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"rules": "inert_norm"},
            r"rules: expected a list of rule ids, got 'inert_norm'; pass \['inert_norm'\]",
        ),
        ({"rules": ["inert"]}, "unknown rule 'inert'; did you mean 'inert_norm'"),
        ({"rules": [3]}, "unknown rule '3'"),
        ({"loss": "mse"}, "loss: expected a function of the model's output, got 'mse'"),
        ({"optimizer": 5}, "optimizer: expected a torch.optim.Optimizer, got 5"),
        ({"config": {"depth": 2}}, "expected both or neither, got config only; pass build as well"),
        ({"build": pre}, "expected both or neither, got build only; pass config as well"),
    ],
)
def test_invalid_argument_raises_one_line_error(arguments, message):
    with pytest.raises(addnorm.UserError, match=message) as caught:
        addnorm.doctor(pre(), ids(), **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 7), (2, 0)])
def test_empty_input_raises(shape):
    with pytest.raises(
        addnorm.UserError, match=r"input 0: expected at least one example .* shape \(\d, \d\)"
    ):
        addnorm.doctor(pre(), torch.zeros(shape, dtype=torch.int64))


def test_rules_and_optimizer_arguments_are_used():
    model = pre()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    findings = addnorm.doctor(model, ids(), optimizer=optimizer, rules=("decayed_gain",)).findings
    assert [f.rule for f in findings] == ["decayed_gain"]
    assert addnorm.doctor(model, ids(), rules=()).findings == ()


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)

    def forward(self, x):
        return torch.vmap(lambda one: one + self.f(one))(x)


def test_notes_distinguish_untraceable_operations_from_missing_ones():
    notes = " ".join(addnorm.doctor(Mapped(), torch.randn(2, 3, 4)).notes)
    assert "from 'f' on, could not be traced back to the inputs, as inside torch.vmap" in notes
    notes = " ".join(addnorm.doctor(nn.ReLU(), torch.randn(2, 3, 4)).notes)
    assert "no operation mixes features or tokens of the inputs" in notes
