"""Native linear layers against float64, and the hooks and overrides they must respect."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

from addnorm.kernels import library, linear
from addnorm.kernels.linear import apply_linear, linear_native
from addnorm.sublayers import FeedForward, SelfAttention

LEVELS = library.list_levels()
pytestmark = pytest.mark.skipif(not LEVELS, reason="the native library was not built")
ROWS = st.one_of(st.integers(0, 70), st.sampled_from([111, 112, 113, 200]))
WHOLE_BLOCKS = st.integers(1, 9).map(lambda n: 16 * n)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_close_to_float64(actual, expected):
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.fixture
def no_minimum_size(monkeypatch):
    """Use the native kernel for small inputs too."""
    monkeypatch.setattr(linear, "MIN_WORK", 0)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS, depth=st.integers(1, 130), columns=st.integers(1, 90), bias=st.booleans())
def test_few_rows_of_any_width_match_reference(level, rows, depth, columns, bias):
    rows = min(rows, linear.MAX_SMALL_ROWS)
    x, weight = randn(rows, depth), randn(columns, depth, seed=1)
    shift = randn(columns, seed=2) if bias else None
    with library.use_level(level):
        actual = linear_native(x, weight, shift)
    expected = x.double() @ weight.double().T
    assert_close_to_float64(actual, expected if shift is None else expected + shift)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS, depth=st.integers(1, 130), columns=WHOLE_BLOCKS, bias=st.booleans())
def test_any_rows_with_whole_blocks_of_columns_match_reference(level, rows, depth, columns, bias):
    x, weight = randn(rows, depth), randn(columns, depth, seed=1)
    shift = randn(columns, seed=2) if bias else None
    with library.use_level(level):
        actual = linear_native(x, weight, shift)
    expected = x.double() @ weight.double().T
    assert_close_to_float64(actual, expected if shift is None else expected + shift)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [5, 130])
def test_non_finite_values_stay_in_their_row(level, rows):
    x, weight = randn(rows, 32), randn(48, 32, seed=1)
    x[1, 3], x[2, 4] = torch.nan, torch.inf
    with library.use_level(level):
        actual = linear_native(x, weight)
    assert actual[1].isnan().all() and actual[2].isinf().all()
    assert actual[0].isfinite().all() and actual[3:].isfinite().all()


@pytest.mark.parametrize("rows", [7, 40, 300])
def test_results_do_not_depend_on_thread_count(rows):
    x, weight, bias = randn(rows, 96), randn(80, 96, seed=1), randn(80, seed=2)
    outputs, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outputs.append(linear_native(x, weight, bias))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, outputs[0]) for each in outputs)


def test_row_does_not_depend_on_other_rows(no_minimum_size):
    x, weight = randn(60, 48), randn(33, 48, seed=1)
    with torch.no_grad():
        whole = linear.linear(x, weight)
        assert torch.equal(linear.linear(x[20:31], weight), whole[20:31])


def test_strided_and_unaligned_inputs(no_minimum_size):
    buffer = randn(70, 50)
    x, weight = buffer[:, 1:41], randn(40, 50, seed=1).T.contiguous()[3:43].T.contiguous()
    with torch.no_grad():
        assert_close_to_float64(linear.linear(x, weight), x.double() @ weight.double().T)
        assert_close_to_float64(linear.linear(x[::2], weight), x[::2].double() @ weight.double().T)
        assert_close_to_float64(
            linear.linear(x, weight.T.contiguous().T), x.double() @ weight.double().T
        )


def test_inputs_with_negative_bit(no_minimum_size):
    x = torch.randn(8, 16, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    weight = randn(16, 16)
    with torch.no_grad():
        torch.testing.assert_close(linear.linear(x.contiguous(), weight), F.linear(x, weight))
        torch.testing.assert_close(
            linear.linear(torch._neg_view(randn(8, 16)), weight), F.linear(-randn(8, 16), weight)
        )
        with pytest.raises(RuntimeError):
            linear.linear(torch.tensor(1.0), weight)


def test_native_runs_only_without_gradient_and_for_supported_inputs(no_minimum_size, calls):
    x, weight, bias = randn(2, 4, 32), randn(20, 32, seed=1), randn(20, seed=2)
    expected = F.linear(x, weight, bias)

    def runs_natively(*args):
        calls.clear()
        torch.testing.assert_close(linear.linear(*args), F.linear(*args))
        return bool(calls)

    assert not runs_natively(x, weight, bias)  # gradients are enabled
    with torch.inference_mode():
        assert runs_natively(x, weight, bias)
        assert runs_natively(x, weight)
        assert not runs_natively(x[0, :3], weight)  # three rows
        assert not runs_natively(x.double(), weight.double(), bias.double())
        assert not runs_natively(x, weight.T.contiguous().T, bias)
        # With many rows, the number of columns must be a multiple of 16.
        assert not runs_natively(randn(120, 32), weight, bias)
        assert runs_natively(randn(120, 32), randn(48, 32))
        with library.use_level("off"):
            assert not runs_natively(x, weight, bias)
        with torch.autocast("cpu", torch.bfloat16):
            assert linear.linear(x, weight, bias).dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="shapes"):
            linear.linear(x[..., :31], weight, bias)
    torch.testing.assert_close(expected, F.linear(x, weight, bias))


def test_layer_runs_natively_only_without_gradient(no_minimum_size, calls):
    layer, x = nn.Linear(32, 48), randn(8, 32)
    torch.testing.assert_close(apply_linear(layer, x), layer(x))
    assert not calls
    with torch.no_grad():
        torch.testing.assert_close(apply_linear(layer, x), layer(x))
    assert calls == ["linear"]


def add_hook(layer):
    events = []
    layer.register_forward_hook(lambda *_: events.append("hook"))
    return events


def replace_forward(layer):
    events = []
    inner = layer.forward

    def forward(x):
        events.append("forward")
        return inner(x)

    layer.forward = forward
    return events


def add_parametrization(layer):
    events = []

    class Counting(nn.Module):
        def forward(self, weight):
            events.append("weight")
            return weight

    parametrize.register_parametrization(layer, "weight", Counting())
    events.clear()
    return events


@pytest.mark.parametrize("observe", [add_hook, replace_forward, add_parametrization])
@pytest.mark.parametrize("grad_enabled", [True, False])
def test_hooks_and_overrides_of_layer_are_called(no_minimum_size, observe, grad_enabled):
    layer = nn.Linear(32, 48)
    events = observe(layer)
    with torch.set_grad_enabled(grad_enabled):
        apply_linear(layer, randn(8, 32))
    assert events


def test_global_module_hooks_are_called(no_minimum_size):
    layer, events = nn.Linear(32, 48), []
    hook = nn.modules.module.register_module_forward_hook(lambda *_: events.append("all"))
    try:
        with torch.no_grad():
            apply_linear(layer, randn(8, 32))
    finally:
        hook.remove()
    assert events == ["all"]


def test_patched_linear_forward_is_called(no_minimum_size, monkeypatch):
    events, inner = [], nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: (events.append(1), inner(self, x))[1])
    with torch.no_grad():
        apply_linear(nn.Linear(32, 48), randn(8, 32))
    assert events == [1]


def test_bias_of_unusual_shape_uses_torch(no_minimum_size, calls):
    layer, x = nn.Linear(32, 48), randn(8, 32)
    layer.bias = nn.Parameter(torch.ones(1))
    with torch.no_grad():
        torch.testing.assert_close(apply_linear(layer, x), layer(x))
        layer.bias = nn.Parameter(torch.ones(3))
        with pytest.raises(RuntimeError):
            apply_linear(layer, x)
    assert not calls


@pytest.mark.parametrize("rows", [8, 120])
def test_freed_weight_storage_raises(no_minimum_size, calls, rows):
    layer = nn.Linear(32, 48)
    layer.weight.untyped_storage().resize_(0)
    with torch.no_grad(), pytest.raises(RuntimeError):
        apply_linear(layer, randn(rows, 32))
    assert not calls


class Half(nn.Module):
    """Module in place of a linear layer, whose `weight` is not a tensor."""

    def weight(self):
        raise AssertionError

    def forward(self, x):
        return x * 0.5


@pytest.mark.parametrize("grad_enabled", [True, False])
def test_module_that_is_not_linear(no_minimum_size, grad_enabled):
    x = randn(2, 120, 32)
    with torch.set_grad_enabled(grad_enabled):
        torch.testing.assert_close(apply_linear(Half(), x), x / 2)
        ffn = FeedForward(32, 64)
        ffn.up_proj = nn.Sequential(ffn.up_proj)
        assert ffn(x).shape == x.shape


@pytest.mark.parametrize("rows", [8, 120])
def test_sublayers_train_with_torch_and_infer_natively(no_minimum_size, calls, rows):
    x = randn(1, rows, 32)
    attention, ffn = SelfAttention(32, 2), FeedForward(32)
    ffn(attention(x)).sum().backward()
    assert "linear" not in calls
    with torch.no_grad():
        attention(x)
        assert calls.count("linear") == 4
        ffn(x)
        assert calls.count("linear") == 6


def test_compiled_graph_uses_torch(no_minimum_size, calls):
    layer, x = nn.Linear(32, 48), randn(8, 32)
    with torch.no_grad():
        torch.compile(lambda x: apply_linear(layer, x), backend="eager")(x)
    assert not calls
