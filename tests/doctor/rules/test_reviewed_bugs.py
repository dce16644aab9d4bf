"""Mistakes found by an independent review, each with healthy models that resemble it."""

import pytest
import torch

import addnorm
from tests.doctor.models.reviewed_bugs import Transformer
from tests.doctor.models.tiny import findings, ids

BUGS = [
    ("large factor", "unscaled_attention"),
    ("divided", "unscaled_attention"),
    ("queries", "wrong_softmax_axis"),
    ("layer input", "skipped_sum"),
    ("raw keys", "partial_pre_norm"),
    ("list", "unregistered_weights"),
    ("copied head", "copied_embedding"),
    ("discarded", "discarded_sum"),
]
HEALTHY = ["", "slots", "normed keys", "tied head", "two tables", "frozen list", "both inputs"]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


CASES = [
    pytest.param(fault, rule, pre, id=f"{fault}-{'pre' if pre else 'post'}")
    for fault, rule in BUGS
    for pre in (True, False)
    if pre or fault != "raw keys"  # Post-LN has no norm before the attention
]


@pytest.mark.parametrize(("fault", "rule", "pre"), CASES)
def test_mistake_is_found(fault, rule, pre):
    (found,) = [each for each in findings(Transformer(fault, pre)) if each.rule == rule]
    assert found.severity in ("warning", "error")


@pytest.mark.parametrize("pre", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("fault", HEALTHY)
def test_healthy_model_is_silent(fault, pre):
    report = addnorm.doctor(Transformer(fault, pre), ids())
    found = [each for each in report.findings if each.severity != "info"]
    assert [each.rule for each in found if each.rule in {rule for _, rule in BUGS}] == []
    assert not [note for note in report.notes if "could not be applied" in note]


def test_factor_of_the_scores_is_evidence():
    (found,) = [f for f in findings(Transformer("large factor")) if f.rule == "unscaled_attention"]
    assert found.evidence["factor"] == pytest.approx(8**0.5)
    assert "with the factor 2.83 instead of 1 / sqrt(8)" in found.message


def test_rules_are_applied_to_layers_in_a_python_list():
    report = addnorm.doctor(Transformer("list"), ids())
    assert not [note for note in report.notes if "could not be applied" in note]


class BuiltInForward(Transformer):
    """Builds a module in its first forward pass, as BigBird does for short sequences."""

    def forward(self, *args, **kwargs):
        if not hasattr(self, "late"):
            self.late = torch.nn.Linear(4, 4)
        return super().forward(*args, **kwargs)


def test_initialization_inside_the_forward_pass_is_silent():
    assert "unregistered_weights" not in {each.rule for each in findings(BuiltInForward(""))}
