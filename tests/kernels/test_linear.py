"""Linear maps, natively, against their definition in float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.kernels import linear, native
from addnorm.kernels.linear import product, sums

LEVELS = native.levels()
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
    monkeypatch.setattr(linear, "WORK", 0)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS, depth=st.integers(1, 130), columns=st.integers(1, 90), bias=st.booleans())
def test_few_rows_of_any_width(level, rows, depth, columns, bias):
    rows = min(rows, linear.FEW)
    x, weight = drawn(rows, depth), drawn(columns, depth, seed=1)
    shift = drawn(columns, seed=2) if bias else None
    with native.using(level):
        found = product(x, weight, shift)
    wanted = x.double() @ weight.double().T
    same(found, wanted if shift is None else wanted + shift)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(
    rows=ROWS,
    depth=st.integers(1, 130),
    columns=WIDE,
    back=st.booleans(),
    relu=st.booleans(),
    gated=st.booleans(),
    last=st.sampled_from(["bias", "add", "nothing"]),
)
def test_all_that_a_product_can_do_besides(level, rows, depth, columns, back, relu, gated, last):
    x, weight = drawn(rows, depth), drawn(columns, depth, seed=1)
    weight = weight.T.contiguous() if back else weight
    gate = drawn(rows, columns, seed=2) if gated else None
    bias = drawn(columns, seed=3) if last == "bias" else None
    to = drawn(rows, columns, seed=4) if last == "add" else None
    wanted = x.double() @ (weight.double() if back else weight.double().T)
    wanted = wanted + (0 if bias is None else bias) + (0 if to is None else to)
    wanted = wanted.relu() if relu else wanted
    wanted = wanted if gate is None else wanted * (gate > 0)
    with native.using(level):
        same(product(x, weight, bias, back=back, relu=relu, gate=gate, to=to), wanted)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(rows=ROWS, depth=WIDE, columns=WIDE, wanted=st.tuples(st.booleans(), st.booleans()))
def test_sums_over_rows(level, rows, depth, columns, wanted):
    dy, x = drawn(rows, columns), drawn(rows, depth, seed=1)
    with native.using(level):
        weight, bias = sums(dy, x, wanted)
    assert ((weight is not None), (bias is not None)) == wanted
    if weight is not None:
        same(weight, dy.double().T @ x.double())
    if bias is not None:
        same(bias, dy.double().sum(0))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [5, 130])
def test_what_is_no_number_stays_in_its_row(level, rows):
    x, weight = drawn(rows, 32), drawn(48, 32, seed=1)
    x[1, 3], x[2, 4] = torch.nan, torch.inf
    with native.using(level):
        found = product(x, weight, relu=rows > linear.FEW)
    assert found[1].isnan().all()
    assert not found[2].isfinite().all() and not found[2].isnan().any()
    assert found[0].isfinite().all() and found[3:].isfinite().all()


@pytest.mark.parametrize("level", LEVELS)
def test_a_gate_that_is_no_number_lets_gradients_pass_as_in_torch(level):
    dy, weight, h = drawn(4, 16), drawn(16, 32, seed=1), drawn(4, 32, seed=2)
    h[0, 0], h[1, 1], h[2, 2] = torch.nan, 0.0, -0.0
    with native.using(level):
        found = product(dy, weight, back=True, gate=h)
    wanted = torch.ops.aten.threshold_backward(dy @ weight, h, 0)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("rows", [7, 40, 300])
def test_threads_change_no_number(rows):
    x, weight, bias = drawn(rows, 96), drawn(80, 96, seed=1), drawn(80, seed=2)
    dy, before = drawn(rows, 80, seed=3), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(
                (product(x, weight, bias), *sums(dy, x[:, :64].contiguous(), (True, True)))
            )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for each in found for a, b in zip(each, found[0], strict=True))


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


@pytest.mark.parametrize("level", LEVELS)
def test_sums_over_many_rows_are_as_exact_as_those_of_torch(level):
    dy, x = 0.5 + drawn(40_000, 16), 0.5 + drawn(40_000, 32, seed=1)
    with native.using(level):
        found = sums(dy, x, (True, True))
    for one, plain, exact in (
        (found[0], dy.T @ x, dy.double().T @ x.double()),
        (found[1], dy.sum(0), dy.double().sum(0)),
    ):
        off, theirs = ((each - exact).abs().max() / exact.abs().max() for each in (one, plain))
        assert off < max(5 * theirs, 2e-6)


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
        with native.using("off"):
            assert not taken(x, weight, bias)
        with torch.autocast("cpu", torch.bfloat16):
            assert linear.linear(x, weight, bias).dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="shapes"):
            linear.linear(x[..., :31], weight, bias)
    torch.testing.assert_close(wanted, F.linear(x, weight, bias))
