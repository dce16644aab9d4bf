"""Outputs and gradients of every wiring against reference implementations."""

import copy

import pytest
import torch

from addnorm.wirings import registry
from tests.bfloat16_bounds import assert_bfloat16_close
from tests.helpers import PAIR, TRIPLE, gradients, perturb, tokens, toy_stack
from tests.wirings import reference

REFERENCES = {name: getattr(reference, name, None) for name in registry} | reference.VARIANTS
TOLERANCE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
}


def test_every_wiring_has_a_reference():
    assert [name for name, loop in REFERENCES.items() if loop is None] == []


# Options that change only initial weights or random draws; other modules test them.
TESTED_ELSEWHERE = {
    *(("pre_ln", "init"), ("b2t", "rescale"), ("admin", "start"), ("skip_init", "start")),
    *(("deepnorm", "alpha"), ("deepnorm", "beta"), ("mix_ln", "post"), ("u_skips", "start")),
    *(("gated", "bias"), ("normformer", "head_scale"), ("ngpt", "root")),
    *(
        ("drop_path", "inner"),
        ("drop_path", "rate"),
        ("layer_drop", "inner"),
        ("layer_drop", "rate"),
    ),
}


def test_every_option_of_every_wiring_has_a_reference_or_a_test():
    covered = {
        (call.name, option)
        for call in map(registry.resolve, reference.VARIANTS)
        for option in call.options
    }
    options = {(name, option) for name in registry for option in registry.card(name).options}
    assert options - covered == TESTED_ELSEWHERE


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("layer", [PAIR, TRIPLE], ids=["encoder", "decoder"])
@pytest.mark.parametrize("call", REFERENCES)
def test_wiring_equals_its_reference_forward_and_backward(call, layer, dtype):
    stack = toy_stack(call, layer=layer, dtype=dtype).eval()
    perturb(stack.wiring)
    x = tokens(dtype=dtype).requires_grad_()
    inputs = [x, *stack.parameters()]
    actual = stack(x)
    expected = REFERENCES[call](x, list(stack.sublayers), stack.wiring, len(layer["kinds"]))
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, **tolerance)
    for one, other in zip(gradients(actual, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


@pytest.mark.parametrize("layer", [PAIR, TRIPLE], ids=["encoder", "decoder"])
@pytest.mark.parametrize("call", REFERENCES)
def test_bfloat16_equals_the_float32_reference_up_to_rounding(call, layer):
    """Output and all gradients; the reference has the rounded inputs and weights."""
    stack = toy_stack(call, layer=layer, dtype=torch.bfloat16).eval()
    perturb(stack.wiring)
    x = tokens(dtype=torch.bfloat16).requires_grad_()
    y = stack(x)
    actual = [y, *gradients(y, [x, *stack.parameters()])]
    exact, exact_x = copy.deepcopy(stack).float(), x.detach().float().requires_grad_()

    def run_reference():
        per_layer = len(layer["kinds"])
        y = REFERENCES[call](exact_x, list(exact.sublayers), exact.wiring, per_layer)
        return [y, *gradients(y, [exact_x, *exact.parameters()])]

    assert_bfloat16_close(actual, run_reference)


@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("call", ["dlcl", "denseformer", "u_skips", "attn_res", "b2t", "parallel"])
def test_wirings_that_count_layers_support_odd_depths(call, depth):
    stack = toy_stack(call, depth=depth)
    perturb(stack.wiring)
    x = tokens()
    expected = REFERENCES[call](x, list(stack.sublayers), stack.wiring, 2)
    torch.testing.assert_close(stack(x), expected, **TOLERANCE[torch.float32])
