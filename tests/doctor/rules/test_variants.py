"""Bugs in other notations are found, and their healthy forms and look-alikes are not reported."""

import warnings
from functools import partial

import pytest
import torch

import addnorm
from tests.doctor.models.variants import LOOKALIKES, VARIANTS

RULES = {
    "causal_cross_attention", "detached_layers", "double_softmax", "doubled_skip", "eps_too_large",
    "eps_too_small", "hidden_diagonal", "high_dropout", "ignored_positions", "ineffective_option",
    "inverted_bias", "missing_norm", "mode_dependent_mask", "narrow_projections", "padding_leak",
    "scale_without_init", "scrambled_heads", "unrooted_norm", "unscaled_attention",
    "unused_weights", "wrong_attention_scale", "wrong_axis", "wrong_softmax_axis",
}  # fmt: skip
"""Rules that have a variant."""


def sample(cases):
    """Return parameters of which every sixth runs by default; the others are slow tests."""
    return [
        pytest.param(case, id=case.name, marks=() if number % 6 == 0 else pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def examine(case, *, broken):
    """Return the ids of the rules that report something above a remark."""
    torch.manual_seed(0)
    inputs = case.inputs()
    torch.manual_seed(1)
    build = partial(case.build, broken)
    options = {"config": case.options, "build": build} if case.options else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about a softmax without an axis
        report = addnorm.doctor(build(**case.options), inputs, **options)
    return {finding.rule for finding in report.findings if finding.severity != "info"}


def test_variants_cover_these_rules():
    assert {case.rule for case in VARIANTS.values()} == RULES


@pytest.mark.parametrize("case", sample(VARIANTS.values()))
def test_variant_is_found(case):
    assert case.rule in examine(case, broken=True)


@pytest.mark.parametrize("case", sample(VARIANTS.values()))
def test_healthy_form_has_no_alarm(case):
    assert not examine(case, broken=False)


@pytest.mark.parametrize("case", sample(LOOKALIKES.values()))
def test_lookalike_has_no_alarm(case):
    assert not examine(case, broken=False)
