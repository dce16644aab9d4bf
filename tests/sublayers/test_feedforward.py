"""Feed-forward sub-layers against textbook formulas."""

import copy
import math

import pytest
import torch

from addnorm import Encoder
from addnorm.core.errors import UserError
from addnorm.core.plan import Plugs
from addnorm.sublayers import FeedForward
from addnorm.sublayers.activations import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS, registry
from tests.bfloat16_bounds import assert_bfloat16_close
from tests.helpers import gradients, perturb, tokens


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def gelu_sigmoid(x):
    return x / (1 + torch.exp(-1.702 * x))


def silu(x):
    return x / (1 + torch.exp(-x))


def relu(x):
    return x * (x > 0)


def rms(x):
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def poly_norm(act, u):
    a, b, c = act.weight
    return a * rms(u * u * u) + b * rms(u * u) + c * rms(u) + act.bias


def poly_relu(act, u):
    return sum(act.weight[2 - k] * relu(u) ** (k + 1) for k in range(3)) + act.bias


def xielu(act, u):
    p, n = torch.log1p(act.alpha_p.exp()), 0.5 + torch.log1p(act.alpha_n.exp())
    below = n * (torch.exp(torch.minimum(u, torch.tensor(-1e-6))) - 1 - u)
    return (u > 0) * p * u * u + (u <= 0) * below + 0.5 * u


LEARNED = {
    "star_relu": lambda act, u: act.scale * relu(u) ** 2 + act.shift,
    "star_relu(scale=0.8944, shift=-0.4472)": lambda act, u: act.scale * relu(u) ** 2 + act.shift,
    "poly_norm": poly_norm,
    "poly_relu": poly_relu,
    "xielu": xielu,
}
"""Activations with parameters, as functions of the module and the first product."""


def clamped(limit, slope, offset):
    def combine(value, gate):
        gate = torch.minimum(gate, torch.tensor(limit, dtype=gate.dtype))
        value = torch.maximum(torch.minimum(value, torch.tensor(limit)), torch.tensor(-limit))
        return (value + offset) * gate / (1 + torch.exp(-slope * gate))

    return combine


COMBINED = {
    "swiglu_clamped": clamped(7.0, 1.702, 1.0),
    "swiglu_clamped(limit=0.5)": clamped(0.5, 1.702, 1.0),
    "swiglu_clamped(limit=10.0, slope=1.0, offset=0.0)": clamped(10.0, 1.0, 0.0),
}
"""Gated activations that also change the value."""

REFERENCE_ACTIVATIONS = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_sigmoid": gelu_sigmoid,
    "silu": silu,
    "relu2": lambda x: relu(x) ** 2,
    "swiglu": silu,
    "reglu": relu,
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
}


def make_feedforward(activation, dtype=torch.float64, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return perturb(FeedForward(10, 13, activation=activation, **options)).to(dtype)


def test_every_activation_has_a_reference():
    assert set(REFERENCE_ACTIVATIONS) == set(PLAIN_ACTIVATIONS | GATED_ACTIVATIONS)
    others = {name.partition("(")[0] for name in (*LEARNED, *COMBINED)}
    assert set(registry) == set(REFERENCE_ACTIVATIONS) | others


def textbook(module, activation, x):
    """Apply the formula with the weights of a module; gated forms multiply value and gate."""
    if activation in LEARNED:
        return module.down_proj(LEARNED[activation](module.act, module.up_proj(x)))
    if activation in COMBINED:
        inner = COMBINED[activation](module.up_proj(x), module.gate_proj(x))
        return module.down_proj(inner)
    act = REFERENCE_ACTIVATIONS[activation]
    if activation in GATED_ACTIVATIONS:
        return module.down_proj(module.up_proj(x) * act(module.gate_proj(x)))
    return module.down_proj(act(module.up_proj(x)))


@pytest.mark.parametrize("activation", [*REFERENCE_ACTIVATIONS, *LEARNED, *COMBINED])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_matches_reference(activation, bias, dtype):
    module = make_feedforward(activation, dtype, bias=bias)
    x = tokens(3, 7, 10, dtype=dtype).requires_grad_()
    ours, expected = module(x), textbook(module, activation, x)
    torch.testing.assert_close(ours, expected)
    inputs = [x, *module.parameters()]
    for a, b in zip(gradients(ours, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("activation", [*REFERENCE_ACTIVATIONS, *LEARNED, *COMBINED])
def test_bfloat16_matches_float32_reference(activation):
    """Compare output and gradients; the reference uses the rounded inputs and weights."""
    module = make_feedforward(activation, torch.bfloat16)
    x = tokens(3, 7, 10, dtype=torch.bfloat16).requires_grad_()
    y = module(x)
    actual = [y, *gradients(y, [x, *module.parameters()])]
    exact, exact_x = copy.deepcopy(module).float(), x.detach().float().requires_grad_()

    def run_reference():
        y = textbook(exact, activation, exact_x)
        return [y, *gradients(y, [exact_x, *exact.parameters()])]

    assert_bfloat16_close(actual, run_reference)


def test_value_and_gate_are_not_interchangeable():
    module, x = make_feedforward("reglu"), tokens(3, 7, 10, dtype=torch.float64)
    swapped = make_feedforward("reglu")
    swapped.up_proj, swapped.gate_proj = swapped.gate_proj, swapped.up_proj
    assert not torch.allclose(module(x), swapped(x))


@pytest.mark.parametrize("activation", REFERENCE_ACTIVATIONS)
def test_plugs_act_before_activation_and_before_last_matrix(activation):
    module, x = make_feedforward(activation), tokens(3, 7, 10, dtype=torch.float64)
    width = module.shape.hidden
    assert width == (26 if activation in GATED_ACTIVATIONS else 13)
    scales = torch.linspace(0.5, 2, width, dtype=torch.float64)
    gains = torch.linspace(-1, 1, module.shape.inner, dtype=torch.float64)
    ours = module(x, plugs=Plugs(hidden=lambda h: h * scales, inner=lambda h: h * gains))
    act, up = REFERENCE_ACTIVATIONS[activation], module.up_proj(x) * scales[:13]
    inner = (
        up * act(module.gate_proj(x) * scales[13:]) if activation in GATED_ACTIVATIONS else act(up)
    )
    torch.testing.assert_close(ours, module.down_proj(inner * gains))


def test_inner_plug_acts_after_dropout():
    module, x = make_feedforward("relu", dropout=0.5), tokens(3, 7, 10, dtype=torch.float64)
    inner_inputs = []
    module(x, plugs=Plugs(inner=lambda h: inner_inputs.append(h) or h))
    clean = REFERENCE_ACTIVATIONS["relu"](module.up_proj(x))
    kept = inner_inputs[0] != 0
    torch.testing.assert_close(inner_inputs[0][kept], 2 * clean[kept])
    assert 0.3 < kept.sum() / (clean != 0).sum() < 0.7
    module.eval()
    assert torch.equal(module(x), module(x))
    torch.testing.assert_close(module(x), make_feedforward("relu")(x))


@pytest.mark.parametrize(("dim", "plain", "gated"), [(6, 24, 16), (10, 40, 32), (192, 768, 512)])
def test_default_width(dim, plain, gated):
    """Gated forms have two thirds of the width, rounded up to a multiple of 8."""
    assert FeedForward(dim).hidden == plain
    assert FeedForward(dim, activation="swiglu").hidden == gated


def test_roles():
    gated = [role for role, _ in FeedForward(6, activation="geglu").roles()]
    assert gated == ["ffn_in", "ffn_in", "ffn_out", "bias", "bias", "bias"]
    assert [role for role, _ in FeedForward(6, bias=False).roles()] == ["ffn_in", "ffn_out"]


def test_state_dict_round_trip():
    module, x = make_feedforward("swiglu"), tokens(3, 7, 10, dtype=torch.float64)
    other = FeedForward(10, 13, activation="swiglu").double()
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(x), other(x))
    assert [name.split(".")[0] for name in other.state_dict()][::2] == [
        "up_proj",
        "gate_proj",
        "down_proj",
    ]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: FeedForward(6, activation="swish"),
            "unknown activation 'swish'; expected one of relu",
        ),
        (lambda: FeedForward(6, activation="SwiGLU"), "did you mean 'swiglu'"),
        (lambda: FeedForward(6, 0), "hidden: expected an integer of at least 1, got 0"),
        (lambda: FeedForward(6, dropout=-0.1), "dropout: expected a number"),
        (lambda: FeedForward(6)(torch.ones(2, 3, 5)), r"\(B, L, 6\), got .* \(2, 3, 5\)"),
    ],
)
def test_errors(build, message):
    with pytest.raises(UserError, match=message):
        build()


def test_clamped_swiglu_without_a_bound_is_swiglu():
    x = tokens(3, 7, 10, dtype=torch.float64)
    clamped = make_feedforward("swiglu_clamped(limit=1e6, slope=1.0, offset=0.0)")
    torch.testing.assert_close(clamped(x), make_feedforward("swiglu")(x))


def test_poly_norm_with_one_power_is_a_norm_without_gain():
    module = make_feedforward("poly_norm")
    with torch.no_grad():
        module.act.weight.copy_(torch.tensor([0.0, 0.0, 1.0]))
        module.act.bias.zero_()
    hidden = module.act(tokens(3, 7, 13, dtype=torch.float64))
    ones = torch.ones(3, 7, dtype=torch.float64)
    torch.testing.assert_close(hidden.square().mean(-1), ones, rtol=1e-5, atol=0)


def test_star_relu_of_the_paper_standardizes_normal_inputs():
    act = FeedForward(4, 8, activation="star_relu(scale=0.8944, shift=-0.4472)").act
    y = act(tokens(100_000, 8))
    assert abs(y.mean().item()) < 0.01 and abs(y.var().item() - 1) < 0.02


def test_parameters_of_an_activation_are_reset_with_the_weights():
    stack = Encoder(dim=8, depth=1, heads=2, activation="star_relu")
    perturb(stack)
    stack.init_weights()
    act = stack.sublayers[1].act
    assert (act.scale.item(), act.shift.item()) == (1.0, 0.0)
    assert {"sublayers.1.act.scale", "sublayers.1.act.shift"} <= stack.no_decay()
