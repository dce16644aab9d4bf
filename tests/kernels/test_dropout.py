"""Rate, scaling, gradient and reproducibility of dropout."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from addnorm.kernels.dropout import Dropout


def drop_ones(rate, *shape, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return Dropout(rate)(torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize("rate", [0.001, 0.1, 1 / 3, 0.5, 0.9, 0.999])
def test_share_of_zeros_equals_rate(rate):
    count = 400_000
    dropped = int((drop_ones(rate, count) == 0).sum())
    assert abs(dropped - rate * count) < 5 * math.sqrt(count * rate * (1 - rate))


@pytest.mark.parametrize("rate", [1e-9, 7e-6, 1e-5])
def test_tiny_rates_keep_nearly_all_features(rate):
    """A rate below half of 1 / 65,536 rounds to zero."""
    y = drop_ones(rate, 200, 200)
    assert (y != 0).double().mean() > 0.99
    y[y == 0] = 1
    torch.testing.assert_close(y, torch.ones(200, 200), rtol=1e-4, atol=0)


def test_batched_gradients():
    x = torch.randn(70, 70, requires_grad=True)
    y = Dropout(0.5)(x)
    (grads,) = torch.autograd.grad(y, x, torch.ones(3, 70, 70), is_grads_batched=True)
    torch.testing.assert_close(grads * x, y.expand(3, -1, -1))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_kept_features_are_scaled_as_in_torch(rate):
    y = drop_ones(rate, 1000, dtype=torch.float64)
    kept = y[y != 0]
    assert kept.unique().numel() == 1
    assert float(kept[0]) == pytest.approx(1 / (1 - rate), rel=1e-4)


def test_neighboring_features_are_uncorrelated():
    """Four features share a random word; its four parts are independent."""
    y = (drop_ones(0.5, 100_000, 4) != 0).double() - 0.5
    correlation = y.T @ y / len(y) / 0.25
    off_diagonal = correlation - torch.diag(correlation.diag())
    assert off_diagonal.abs().max() < 5 / math.sqrt(len(y))


def test_gradient_uses_the_forward_mask():
    x = torch.randn(3, 7, 10, requires_grad=True, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(2)
    y = Dropout(0.3)(x)
    y.sum().backward()
    torch.testing.assert_close(y, x * x.grad)


@given(
    st.lists(st.integers(0, 5), min_size=0, max_size=4),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_any_shape_and_dtype(shape, dtype):
    y = drop_ones(0.5, *shape, dtype=dtype)
    assert y.shape == tuple(shape)
    assert y.dtype == dtype
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


def test_non_contiguous_input():
    x = torch.arange(1.0, 13.0).reshape(3, 4).T
    torch.manual_seed(0)
    y = Dropout(0.5)(x)
    assert ((y == 0) | (y == 2 * x)).all()


def test_seed_determines_mask():
    assert drop_ones(0.5, 999, seed=1).equal(drop_ones(0.5, 999, seed=1))
    assert not drop_ones(0.5, 999, seed=1).equal(drop_ones(0.5, 999, seed=2))


@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
def test_evaluation_drops_nothing(rate):
    x = torch.randn(5, generator=torch.Generator().manual_seed(0))
    assert Dropout(rate).eval()(x) is x or Dropout(rate).eval()(x).equal(x)
    assert Dropout(0.0)(x).equal(x)
    assert not Dropout(1.0)(x).any()


def test_rate_just_below_one_gives_finite_output():
    assert drop_ones(1 - 1e-9, 100_000).isfinite().all()


def test_invalid_rate_raises_as_in_torch():
    with pytest.raises(ValueError, match="dropout probability has to be between 0 and 1"):
        Dropout(1.5)
    assert isinstance(Dropout(0.1), nn.Dropout)
