"""What `addnorm.doctor` is asked: settings without effect and mistakes are told in one line."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import ids
from tests.doctor.state_checksum import pre


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rules": "inert_norm"}, r"wanted a list of rule ids: rules=\['inert_norm'\]"),
        ({"rules": ["inert"]}, "unknown rule 'inert'; did you mean 'inert_norm'"),
        ({"rules": [3]}, "unknown rule '3'"),
        ({"loss": "mse"}, "got loss='mse'; wanted a function of the model's output"),
        ({"optimizer": 5}, "got optimizer=5; wanted a torch.optim.Optimizer"),
        ({"config": {"depth": 2}}, "got config= without build=; wanted both"),
        ({"build": pre}, "got build= without config=; wanted both"),
    ],
)
def test_a_setting_that_cannot_be_is_told(settings, said):
    with pytest.raises(addnorm.UserError, match=said) as caught:
        addnorm.doctor(pre(), ids(), **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(0, 7), (2, 0)])
def test_an_empty_batch_is_told(shape):
    with pytest.raises(
        addnorm.UserError, match=r"got the empty input 0 of shape \(\d, \d\); wanted"
    ):
        addnorm.doctor(pre(), torch.zeros(shape, dtype=torch.int64))


def test_chosen_rules_and_optimizers_are_taken():
    model = pre()
    careful = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    found = addnorm.doctor(model, ids(), optimizer=careful, rules=("decayed_gain",)).findings
    assert [f.rule for f in found] == ["decayed_gain"]
    assert addnorm.doctor(model, ids(), rules=()).findings == ()


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)

    def forward(self, x):
        return torch.vmap(lambda one: one + self.f(one))(x)


def test_what_could_not_be_followed_is_not_called_absent():
    notes = " ".join(addnorm.doctor(Mapped(), torch.randn(2, 3, 4)).notes)
    assert "from 'f' on, could not be followed back to the inputs, as inside torch.vmap" in notes
    notes = " ".join(addnorm.doctor(nn.ReLU(), torch.randn(2, 3, 4)).notes)
    assert "nothing mixes features or tokens of the inputs" in notes
