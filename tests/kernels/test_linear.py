"""Linear maps, natively, against their definition in float64; and who must not be passed by."""

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

LEVELS = library.levels()
pytestmark = pytest.mark.skipif(not LEVELS, reason="the native library was not built")
ROWS = st.one_of(st.integers(0, 70), st.sampled_from([111, 112, 113, 200]))
WIDE = st.integers(1, 9).map(lambda n: 16 * n)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(found, wanted):
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.fixture
def small(monkeypatch):
    """What is small is taken, too."""
    monkeypatch.setattr(linear, "MIN_WORK", 0)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS, depth=st.integers(1, 130), columns=st.integers(1, 90), bias=st.booleans())
def test_few_rows_of_any_width(level, rows, depth, columns, bias):
    rows = min(rows, linear.MAX_SMALL_ROWS)
    x, weight = drawn(rows, depth), drawn(columns, depth, seed=1)
    shift = drawn(columns, seed=2) if bias else None
    with library.use_level(level):
        found = linear_native(x, weight, shift)
    wanted = x.double() @ weight.double().T
    same(found, wanted if shift is None else wanted + shift)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS, depth=st.integers(1, 130), columns=WIDE, bias=st.booleans())
def test_any_rows_of_whole_blocks(level, rows, depth, columns, bias):
    x, weight = drawn(rows, depth), drawn(columns, depth, seed=1)
    shift = drawn(columns, seed=2) if bias else None
    with library.use_level(level):
        found = linear_native(x, weight, shift)
    wanted = x.double() @ weight.double().T
    same(found, wanted if shift is None else wanted + shift)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [5, 130])
def test_what_is_no_number_stays_in_its_row(level, rows):
    x, weight = drawn(rows, 32), drawn(48, 32, seed=1)
    x[1, 3], x[2, 4] = torch.nan, torch.inf
    with library.use_level(level):
        found = linear_native(x, weight)
    assert found[1].isnan().all() and found[2].isinf().all()
    assert found[0].isfinite().all() and found[3:].isfinite().all()


@pytest.mark.parametrize("rows", [7, 40, 300])
def test_threads_change_no_number(rows):
    x, weight, bias = drawn(rows, 96), drawn(80, 96, seed=1), drawn(80, seed=2)
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(linear_native(x, weight, bias))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


def test_a_row_does_not_depend_on_the_others(small):
    x, weight = drawn(60, 48), drawn(33, 48, seed=1)
    with torch.no_grad():
        every = linear.linear(x, weight)
        assert torch.equal(linear.linear(x[20:31], weight), every[20:31])


def test_what_stands_in_any_order_or_at_odd_addresses(small):
    room = drawn(70, 50)
    x, weight = room[:, 1:41], drawn(40, 50, seed=1).T.contiguous()[3:43].T.contiguous()
    with torch.no_grad():
        same(linear.linear(x, weight), x.double() @ weight.double().T)
        same(linear.linear(x[::2], weight), x[::2].double() @ weight.double().T)
        same(linear.linear(x, weight.T.contiguous().T), x.double() @ weight.double().T)


def test_numbers_with_a_sign_of_their_own(small):
    x = torch.randn(8, 16, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    weight = drawn(16, 16)
    with torch.no_grad():
        torch.testing.assert_close(linear.linear(x.contiguous(), weight), F.linear(x, weight))
        torch.testing.assert_close(
            linear.linear(torch._neg_view(drawn(8, 16)), weight), F.linear(-drawn(8, 16), weight)
        )
        with pytest.raises(RuntimeError):
            linear.linear(torch.tensor(1.0), weight)


def test_it_is_taken_without_gradient_and_left_to_torch_otherwise(small, calls):
    x, weight, bias = drawn(2, 4, 32), drawn(20, 32, seed=1), drawn(20, seed=2)
    wanted = F.linear(x, weight, bias)

    def taken(*given):
        calls.clear()
        torch.testing.assert_close(linear.linear(*given), F.linear(*given))
        return bool(calls)

    assert not taken(x, weight, bias)  # somebody might want a gradient
    with torch.inference_mode():
        assert taken(x, weight, bias)
        assert taken(x, weight)
        assert not taken(x[0, :3], weight)  # three rows
        assert not taken(x.double(), weight.double(), bias.double())
        assert not taken(x, weight.T.contiguous().T, bias)
        assert not taken(drawn(120, 32), weight, bias)  # many rows, and 20 is no multiple of 16
        assert taken(drawn(120, 32), drawn(48, 32))
        with library.use_level("off"):
            assert not taken(x, weight, bias)
        with torch.autocast("cpu", torch.bfloat16):
            assert linear.linear(x, weight, bias).dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="shapes"):
            linear.linear(x[..., :31], weight, bias)
    torch.testing.assert_close(wanted, F.linear(x, weight, bias))


def test_a_layer_is_passed_by_without_gradient_alone(small, calls):
    layer, x = nn.Linear(32, 48), drawn(8, 32)
    torch.testing.assert_close(apply_linear(layer, x), layer(x))
    assert not calls
    with torch.no_grad():
        torch.testing.assert_close(apply_linear(layer, x), layer(x))
    assert calls == ["linear"]


def watch(layer):
    seen = []
    layer.register_forward_hook(lambda *_: seen.append("hook"))
    return seen


def replace(layer):
    seen = []
    inner = layer.forward

    def forward(x):
        seen.append("forward")
        return inner(x)

    layer.forward = forward
    return seen


def wrap(layer):
    seen = []

    class Counting(nn.Module):
        def forward(self, weight):
            seen.append("weight")
            return weight

    parametrize.register_parametrization(layer, "weight", Counting())
    seen.clear()
    return seen


@pytest.mark.parametrize("how", [watch, replace, wrap])
@pytest.mark.parametrize("learns", [True, False])
def test_nobody_who_looks_is_passed_by(small, how, learns):
    layer = nn.Linear(32, 48)
    seen = how(layer)
    with torch.set_grad_enabled(learns):
        apply_linear(layer, drawn(8, 32))
    assert seen


def test_hooks_of_all_modules_are_called(small):
    layer, seen = nn.Linear(32, 48), []
    hook = nn.modules.module.register_module_forward_hook(lambda *_: seen.append("all"))
    try:
        with torch.no_grad():
            apply_linear(layer, drawn(8, 32))
    finally:
        hook.remove()
    assert seen == ["all"]


def test_another_forward_of_all_linear_layers(small, monkeypatch):
    seen, inner = [], nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: (seen.append(1), inner(self, x))[1])
    with torch.no_grad():
        apply_linear(nn.Linear(32, 48), drawn(8, 32))
    assert seen == [1]


def test_biases_of_other_shapes_are_torchs_business(small, calls):
    layer, x = nn.Linear(32, 48), drawn(8, 32)
    layer.bias = nn.Parameter(torch.ones(1))
    with torch.no_grad():
        torch.testing.assert_close(apply_linear(layer, x), layer(x))
        layer.bias = nn.Parameter(torch.ones(3))
        with pytest.raises(RuntimeError):
            apply_linear(layer, x)
    assert not calls


@pytest.mark.parametrize("rows", [8, 120])
def test_weights_whose_memory_was_taken_away(small, calls, rows):
    layer = nn.Linear(32, 48)
    layer.weight.untyped_storage().resize_(0)
    with torch.no_grad(), pytest.raises(RuntimeError):
        apply_linear(layer, drawn(rows, 32))
    assert not calls


class Halved(nn.Module):
    """Another module in the place of a layer: its weight is no tensor."""

    def weight(self):
        raise AssertionError

    def forward(self, x):
        return x * 0.5


@pytest.mark.parametrize("learns", [True, False])
def test_other_modules_may_stand_there(small, learns):
    x = drawn(2, 120, 32)
    with torch.set_grad_enabled(learns):
        torch.testing.assert_close(apply_linear(Halved(), x), x / 2)
        ffn = FeedForward(32, 64)
        ffn.up_proj = nn.Sequential(ffn.up_proj)
        assert ffn(x).shape == x.shape


@pytest.mark.parametrize("rows", [8, 120])
def test_sublayers_learn_with_torch_and_decode_natively(small, calls, rows):
    x = drawn(1, rows, 32)
    attention, ffn = SelfAttention(32, 2), FeedForward(32)
    ffn(attention(x)).sum().backward()
    assert "linear" not in calls
    with torch.no_grad():
        attention(x)
        assert calls.count("linear") == 4
        ffn(x)
        assert calls.count("linear") == 6


def test_a_compiled_graph_is_left_to_torch(small, calls):
    layer, x = nn.Linear(32, 48), drawn(8, 32)
    with torch.no_grad():
        torch.compile(lambda x: apply_linear(layer, x), backend="eager")(x)
    assert not calls
