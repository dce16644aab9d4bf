"""Values and gradients of norms against reference implementations and the norms of torch."""

import pytest
import torch
from torch import nn

from addnorm.core.calls import Call
from addnorm.norms import make_norm, registry
from tests.norms import reference
from tests.norms.cases import CASES, DIM, SHAPE, build, cond_for, name_of, ragged_mask, randn

TOLERANCE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    # A norm promises float32 arithmetic and one rounding of each result, whose relative error is at
    # most 2^-8, the unit roundoff of bfloat16. The rest is the tolerance of float32.
    torch.bfloat16: {"rtol": 2.0**-8 + 1e-4, "atol": 1e-4},
}


def test_every_norm_has_a_reference():
    missing = [name for name in registry if not hasattr(reference, name)]
    assert missing == [], "add a function of that name to tests/norms/reference.py"


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("call", CASES)
def test_values_and_gradients_equal_the_reference(call, dtype, training):
    """The reference computes in float32 or better, from the inputs and weights as rounded."""
    norm = build(call, dtype=dtype).train(training)
    x = randn(*SHAPE, dtype=dtype).requires_grad_()
    cond = cond_for(norm, SHAPE[0])
    inputs = [x, *norm.parameters()]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exact = [each.detach().to(wide).requires_grad_() for each in inputs]
    tensors = {name: tensor.to(wide).clone() for name, tensor in norm.named_buffers()}
    tensors |= dict(zip(dict(norm.named_parameters()), exact[1:], strict=True))
    options = Call.parse(call).options
    expected_y = getattr(reference, name_of(call))(
        exact[0],
        # Parameters replace their start values; their presence replaces affine and bias.
        **{name: options[name] for name in options.keys() - {"affine", "bias"} - tensors.keys()},
        **tensors,
        mask=ragged_mask(),
        cond=None if cond is None else cond.to(wide),
        training=training,
    )
    ours = norm(x, ragged_mask(), cond)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.to(wide), expected_y, **TOLERANCE[dtype])
    weights = randn(*SHAPE, seed=2, dtype=dtype)
    own_gradients = torch.autograd.grad(ours, inputs, weights)
    gradients = torch.autograd.grad(expected_y, exact, weights.to(wide))
    for own, expected in zip(own_gradients, gradients, strict=True):
        assert own.dtype == dtype
        # A gradient sums over tokens: the tolerance is that of the largest term.
        size = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(own.to(wide) / size, expected / size, **TOLERANCE[dtype])


def assert_norms_equal(ours, torch_norm, x, *, mask=None, close=torch.testing.assert_close):
    """Assert equal outputs and gradients of input, gain and bias, from equal parameters."""
    torch_norm.load_state_dict(ours.state_dict())
    y, other = ours(x, mask), torch_norm(x)
    close(y, other)
    ours_x, other_x = (
        torch.autograd.grad(value.square().sum(), [x, *norm.parameters()])
        for value, norm in ((y, ours), (other, torch_norm))
    )
    for own, expected in zip(ours_x, other_x, strict=True):
        close(own, expected)


@pytest.mark.parametrize("shape", [SHAPE, (DIM,), (5, DIM)], ids=str)
def test_layer_equals_torch_layer_norm(shape):
    x = randn(*shape).requires_grad_()
    assert_norms_equal(build("layer"), nn.LayerNorm(DIM), x)
    assert_norms_equal(build("layer(bias=False)"), nn.LayerNorm(DIM, bias=False), x)
    assert_norms_equal(build("layer(eps=0.1)"), nn.LayerNorm(DIM, eps=0.1), x)


@pytest.mark.parametrize("shape", [SHAPE, (DIM,), (5, DIM)], ids=str)
def test_rms_equals_torch_rms_norm(shape):
    x = randn(*shape).requires_grad_()
    assert_norms_equal(build("rms"), nn.RMSNorm(DIM, eps=1e-6), x)
    assert_norms_equal(build("rms(eps=0.1)"), nn.RMSNorm(DIM, eps=0.1), x)


def test_group_equals_torch_group_norm_on_single_tokens():
    x = randn(21, DIM).requires_grad_()
    assert_norms_equal(build("group(groups=2)"), nn.GroupNorm(2, DIM), x)


def test_group_differs_from_torch_group_norm_over_sequences():
    """On (B, dim, L), torch also averages over tokens, including later tokens and padding."""
    x = randn(*SHAPE)
    over_sequences = nn.GroupNorm(2, DIM)(x.transpose(1, 2)).transpose(1, 2)
    assert (make_norm("group(groups=2)", DIM)(x) - over_sequences).abs().max() > 0.1


def test_batch_equals_torch_batch_norm_on_gathered_tokens():
    """Outputs, gradients and running statistics over three steps, then in evaluation."""
    ours, torch_norm, mask = build("batch"), nn.BatchNorm1d(DIM), ragged_mask()
    torch_norm.load_state_dict(ours.state_dict())
    for step in range(3):
        x = randn(*SHAPE, seed=step).requires_grad_()
        y, other = ours(x, mask), torch_norm(x[mask])
        torch.testing.assert_close(y[mask], other)
        for own, expected in zip(
            torch.autograd.grad(y.square().sum(), [x, *ours.parameters()]),
            torch.autograd.grad(other.square().sum(), [x, *torch_norm.parameters()]),
            strict=True,
        ):
            torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)
        for name, buffer in torch_norm.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], buffer)
    torch.testing.assert_close(ours.eval()(x, mask)[mask], torch_norm.eval()(x[mask]))
    torch.testing.assert_close(ours(x), torch_norm(x.flatten(0, 1)).view(SHAPE))


def test_instance_equals_torch_instance_norm_on_each_sentence():
    ours, torch_norm, mask = build("instance"), nn.InstanceNorm1d(DIM, affine=True), ragged_mask()
    torch_norm.load_state_dict(ours.state_dict())
    x = randn(*SHAPE)
    y = ours(x, mask)
    for sentence, valid in enumerate(mask):
        alone = torch_norm(x[sentence, valid].T[None])[0].T
        torch.testing.assert_close(y[sentence, valid], alone)


def test_ada_ln_equals_the_modulation_of_dit():
    """DiT's final layer, written from its parts: shift comes before scale."""
    ours = build("ada_ln(cond_dim=3)")
    linear = nn.Linear(3, 2 * DIM)
    linear.load_state_dict(ours.state_dict())
    x, cond = randn(*SHAPE), randn(SHAPE[0], 3, seed=1)
    shift, scale = linear(nn.functional.silu(cond)).chunk(2, dim=1)
    plain = nn.LayerNorm(DIM, eps=1e-6, elementwise_affine=False)
    expected = plain(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
    torch.testing.assert_close(ours(x, cond=cond), expected)
