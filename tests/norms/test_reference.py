"""Every norm against its textbook twin, and against the norms of torch: values and gradients."""

import pytest
import torch
from torch import nn

from addnorm.core.calls import Call
from addnorm.norms import make_norm, registry
from tests.norms.cases import CASES, DIM, SHAPE, build, cond_for, name_of, ragged, randn
from tests.norms.reference import TWINS

TOLERANCE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-9},
    torch.float32: {"rtol": 1e-4, "atol": 1e-4},
    # A norm promises float32 arithmetic and one rounding of each result, whose relative error is at
    # most 2^-8, the unit roundoff of bfloat16. The rest is the tolerance of float32.
    torch.bfloat16: {"rtol": 2.0**-8 + 1e-4, "atol": 1e-4},
}


def test_every_norm_has_a_twin():
    assert set(TWINS) == set(registry)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("call", CASES)
def test_values_and_gradients_equal_the_twins(call, dtype, training):
    """The reference computes in float32 or better, from the inputs and weights as rounded."""
    norm = build(call, dtype=dtype).train(training)
    x = randn(*SHAPE, dtype=dtype).requires_grad_()
    cond = cond_for(norm, SHAPE[0])
    inputs = [x, *norm.parameters()]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    exact = [each.detach().to(wide).requires_grad_() for each in inputs]
    known = {name: tensor.to(wide).clone() for name, tensor in norm.named_buffers()}
    known |= dict(zip(dict(norm.named_parameters()), exact[1:], strict=True))
    options = Call.parse(call).options
    twin = TWINS[name_of(call)](
        exact[0],
        # An absent parameter says as much as affine or bias, a present one more than its start.
        **{name: options[name] for name in options.keys() - {"affine", "bias"} - known.keys()},
        **known,
        mask=ragged(),
        cond=None if cond is None else cond.to(wide),
        training=training,
    )
    ours = norm(x, ragged(), cond)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours.to(wide), twin, **TOLERANCE[dtype])
    weights = randn(*SHAPE, seed=2, dtype=dtype)
    own_gradients = torch.autograd.grad(ours, inputs, weights)
    gradients = torch.autograd.grad(twin, exact, weights.to(wide))
    for own, expected in zip(own_gradients, gradients, strict=True):
        assert own.dtype == dtype
        # A gradient sums over tokens: the tolerance is that of the largest term.
        size = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(own.to(wide) / size, expected / size, **TOLERANCE[dtype])


def assert_same(ours, stranger, x, *, mask=None, close=torch.testing.assert_close):
    """Same values, same gradients of the input and of gain and bias, from equal parameters."""
    stranger.load_state_dict(ours.state_dict())
    y, other = ours(x, mask), stranger(x)
    close(y, other)
    ours_x, other_x = (
        torch.autograd.grad(value.square().sum(), [x, *norm.parameters()])
        for value, norm in ((y, ours), (other, stranger))
    )
    for own, expected in zip(ours_x, other_x, strict=True):
        close(own, expected)


@pytest.mark.parametrize("shape", [SHAPE, (DIM,), (5, DIM)], ids=str)
def test_layer_is_torchs_layer_norm(shape):
    x = randn(*shape).requires_grad_()
    assert_same(build("layer"), nn.LayerNorm(DIM), x)
    assert_same(build("layer(bias=False)"), nn.LayerNorm(DIM, bias=False), x)
    assert_same(build("layer(eps=0.1)"), nn.LayerNorm(DIM, eps=0.1), x)


@pytest.mark.parametrize("shape", [SHAPE, (DIM,), (5, DIM)], ids=str)
def test_rms_is_torchs_rms_norm(shape):
    x = randn(*shape).requires_grad_()
    assert_same(build("rms"), nn.RMSNorm(DIM, eps=1e-6), x)
    assert_same(build("rms(eps=0.1)"), nn.RMSNorm(DIM, eps=0.1), x)


def test_group_is_torchs_group_norm_on_single_tokens():
    x = randn(21, DIM).requires_grad_()
    assert_same(build("group(groups=2)"), nn.GroupNorm(2, DIM), x)


def test_group_is_not_torchs_group_norm_along_the_sentence():
    """On (B, dim, L) torch averages over the tokens as well: the future and the padding."""
    x = randn(*SHAPE)
    along = nn.GroupNorm(2, DIM)(x.transpose(1, 2)).transpose(1, 2)
    assert (make_norm("group(groups=2)", DIM)(x) - along).abs().max() > 0.1


def test_batch_is_torchs_batch_norm_on_gathered_tokens():
    """Outputs, gradients and running statistics over three steps, then in evaluation."""
    ours, stranger, mask = build("batch"), nn.BatchNorm1d(DIM), ragged()
    stranger.load_state_dict(ours.state_dict())
    for step in range(3):
        x = randn(*SHAPE, seed=step).requires_grad_()
        y, other = ours(x, mask), stranger(x[mask])
        torch.testing.assert_close(y[mask], other)
        for own, expected in zip(
            torch.autograd.grad(y.square().sum(), [x, *ours.parameters()]),
            torch.autograd.grad(other.square().sum(), [x, *stranger.parameters()]),
            strict=True,
        ):
            torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)
        for name, buffer in stranger.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[name], buffer)
    torch.testing.assert_close(ours.eval()(x, mask)[mask], stranger.eval()(x[mask]))
    torch.testing.assert_close(ours(x), stranger(x.flatten(0, 1)).view(SHAPE))


def test_instance_is_torchs_instance_norm_on_each_sentence():
    ours, stranger, mask = build("instance"), nn.InstanceNorm1d(DIM, affine=True), ragged()
    stranger.load_state_dict(ours.state_dict())
    x = randn(*SHAPE)
    y = ours(x, mask)
    for sentence, valid in enumerate(mask):
        alone = stranger(x[sentence, valid].T[None])[0].T
        torch.testing.assert_close(y[sentence, valid], alone)


def test_dit_s_modulation_is_ada_ln():
    """DiT's final layer, written from its parts: shift comes before scale."""
    ours = build("ada_ln(cond_dim=3)")
    linear = nn.Linear(3, 2 * DIM)
    linear.load_state_dict(ours.state_dict())
    x, cond = randn(*SHAPE), randn(SHAPE[0], 3, seed=1)
    shift, scale = linear(nn.functional.silu(cond)).chunk(2, dim=1)
    plain = nn.LayerNorm(DIM, eps=1e-6, elementwise_affine=False)
    expected = plain(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)
    torch.testing.assert_close(ours(x, cond=cond), expected)
