"""Adam, AdamW and RAdam: torch optimizers with shared options."""

import pytest
import torch

from addnorm.models import LanguageModel
from addnorm.models.config import Config
from addnorm.train.optimizers.base import make_optimizer, registry

THEIRS = {
    "adam": (torch.optim.Adam, {"fused": True, "decoupled_weight_decay": False}),
    "adamw": (torch.optim.AdamW, {"fused": True, "decoupled_weight_decay": True}),
    "radam": (torch.optim.RAdam, {"foreach": True, "decoupled_weight_decay": True}),
}


def language_model():
    torch.manual_seed(0)
    return LanguageModel(Config(kind="lm", vocab=13, dim=8, depth=1, heads=2))


@pytest.mark.parametrize("name", THEIRS)
def test_options_are_passed_to_torch(name):
    call = f"{name}(beta1=0.7, beta2=0.9, eps=1e-5)"
    (made,) = make_optimizer(call, language_model(), lr=0.5, weight_decay=0.1).optimizers
    kind, settings = THEIRS[name]
    assert type(made) is kind
    known = kind([torch.nn.Parameter(torch.zeros(1))]).param_groups[0]  # depends on torch's version
    settings = {key: value for key, value in settings.items() if key in known}
    for group in made.param_groups:
        expected = {"lr": 0.5, "betas": (0.7, 0.9), "eps": 1e-5, **settings}
        assert {key: group[key] for key in expected} == expected
    assert [group["weight_decay"] for group in made.param_groups] == [0.1, 0.0]


def test_variants_share_options_and_defaults():
    for name in THEIRS:
        options = registry.card(name).options
        assert {key: option.default for key, option in options.items()} == {
            "beta1": 0.9,
            "beta2": 0.98,
            "eps": 1e-8,
        }


def test_only_radam_has_a_departure():
    departures = {name: registry.card(name).departures for name in THEIRS}
    assert departures["adam"] == departures["adamw"] == ()
    assert [text.partition(";")[0] for text in departures["radam"]] == [
        "the paper adapts as soon as rho > 4"
    ]
