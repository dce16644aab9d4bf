"""Feed-forward against three-line twins."""

import copy
import math

import pytest
import torch

from addnorm.core.errors import UserError
from addnorm.core.plan import Plugs
from addnorm.sublayers import FeedForward
from addnorm.sublayers.feedforward import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS
from tests.helpers import gradients, shaken, tokens
from tests.rounding import assert_bfloat16_close


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


TWINS = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_sigmoid": gelu_sigmoid,
    "silu": silu,
    "swiglu": silu,
    "reglu": relu,
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
}


def make(activation, dtype=torch.float64, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return shaken(FeedForward(10, 13, activation=activation, **options)).to(dtype)


def test_every_activation_has_a_twin():
    assert set(TWINS) == set(PLAIN_ACTIVATIONS | GATED_ACTIVATIONS)


def textbook(module, activation, x):
    """The formula with a module's weights: gated forms multiply the value by the activated gate."""
    act = TWINS[activation]
    if activation in GATED_ACTIVATIONS:
        return module.down_proj(module.up_proj(x) * act(module.gate_proj(x)))
    return module.down_proj(act(module.up_proj(x)))


@pytest.mark.parametrize("activation", TWINS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_its_twin(activation, bias, dtype):
    module, x = make(activation, dtype, bias=bias), tokens(3, 7, 10, dtype=dtype).requires_grad_()
    ours, twin = module(x), textbook(module, activation, x)
    torch.testing.assert_close(ours, twin)
    inputs = [x, *module.parameters()]
    for a, b in zip(gradients(ours, inputs), gradients(twin, inputs), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("activation", TWINS)
def test_bfloat16_equals_the_float32_reference_up_to_rounding(activation):
    """Output and all gradients; the reference has the rounded inputs and weights."""
    module = make(activation, torch.bfloat16)
    x = tokens(3, 7, 10, dtype=torch.bfloat16).requires_grad_()
    y = module(x)
    actual = [y, *gradients(y, [x, *module.parameters()])]
    exact, exact_x = copy.deepcopy(module).float(), x.detach().float().requires_grad_()

    def run_reference():
        y = textbook(exact, activation, exact_x)
        return [y, *gradients(y, [exact_x, *exact.parameters()])]

    assert_bfloat16_close(actual, run_reference)


def test_the_order_of_value_and_gate_matters():
    module, x = make("reglu"), tokens(3, 7, 10, dtype=torch.float64)
    swapped = make("reglu")
    swapped.up_proj, swapped.gate_proj = swapped.gate_proj, swapped.up_proj
    assert not torch.allclose(module(x), swapped(x))


@pytest.mark.parametrize("activation", TWINS)
def test_plugs_stand_before_the_activation_and_before_the_last_matrix(activation):
    module, x = make(activation), tokens(3, 7, 10, dtype=torch.float64)
    width = module.shape.hidden
    assert width == (26 if activation in GATED_ACTIVATIONS else 13)
    scales = torch.linspace(0.5, 2, width, dtype=torch.float64)
    gains = torch.linspace(-1, 1, module.shape.inner, dtype=torch.float64)
    ours = module(x, plugs=Plugs(hidden=lambda h: h * scales, inner=lambda h: h * gains))
    act, up = TWINS[activation], module.up_proj(x) * scales[:13]
    inner = (
        up * act(module.gate_proj(x) * scales[13:]) if activation in GATED_ACTIVATIONS else act(up)
    )
    torch.testing.assert_close(ours, module.down_proj(inner * gains))


def test_inner_plug_stands_after_dropout():
    module, x = make("relu", dropout=0.5), tokens(3, 7, 10, dtype=torch.float64)
    seen = []
    module(x, plugs=Plugs(inner=lambda h: seen.append(h) or h))
    clean = TWINS["relu"](module.up_proj(x))
    kept = seen[0] != 0
    torch.testing.assert_close(seen[0][kept], 2 * clean[kept])
    assert 0.3 < kept.sum() / (clean != 0).sum() < 0.7
    module.eval()
    assert torch.equal(module(x), module(x))
    torch.testing.assert_close(module(x), make("relu")(x))


@pytest.mark.parametrize(("dim", "plain", "gated"), [(6, 24, 16), (10, 40, 32), (192, 768, 512)])
def test_widths_by_default(dim, plain, gated):
    """A gated one has a third matrix and two thirds of the width, up to a multiple of 8."""
    assert FeedForward(dim).hidden == plain
    assert FeedForward(dim, activation="swiglu").hidden == gated


def test_roles():
    gated = [role for role, _ in FeedForward(6, activation="geglu").roles()]
    assert gated == ["ffn_in", "ffn_in", "ffn_out", "bias", "bias", "bias"]
    assert [role for role, _ in FeedForward(6, bias=False).roles()] == ["ffn_in", "ffn_out"]


def test_state_dict_round_trip():
    module, x = make("swiglu"), tokens(3, 7, 10, dtype=torch.float64)
    twin = FeedForward(10, 13, activation="swiglu").double()
    twin.load_state_dict(module.state_dict())
    assert torch.equal(module(x), twin(x))
    assert [name.split(".")[0] for name in twin.state_dict()][::2] == [
        "up_proj",
        "gate_proj",
        "down_proj",
    ]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FeedForward(6, activation="swish"), "unknown activation 'swish'; .*Known: relu"),
        (lambda: FeedForward(6, activation="SwiGLU"), "did you mean 'swiglu'"),
        (lambda: FeedForward(6, 0), "hidden: expected an integer of at least 1, got 0"),
        (lambda: FeedForward(6, dropout=-0.1), "dropout: expected a number"),
        (lambda: FeedForward(6)(torch.ones(2, 3, 5)), r"\(B, L, 6\), got .* \(2, 3, 5\)"),
    ],
)
def test_errors(build, message):
    with pytest.raises(UserError, match=message):
        build()
