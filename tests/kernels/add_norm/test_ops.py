"""Fused dropout, add and norm: reference against textbook formulas, native against reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from addnorm.core.errors import UserError
from addnorm.kernels import library
from addnorm.kernels.add_norm import ops as module
from addnorm.kernels.add_norm.ops import add_norm, add_norm_with_sum
from addnorm.kernels.add_norm.reference import NormParams
from addnorm.kernels.dropout_rng import dropout_factors, sample_seed

LEVELS = library.list_levels() or [
    pytest.param("", marks=pytest.mark.skip(library.get_availability().reason))
]
BEST = LEVELS[-1:]
# In bfloat16 both implementations round the same float32 numbers, up to float32's own error, and at
# the same places. So they differ by one unit in the last place at most, 2^-7 of the value.
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 2.0**-7, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def use_native_for_all_sizes(monkeypatch):
    monkeypatch.setattr(module, "MIN_NATIVE_FEATURES", 1)
    monkeypatch.setattr(module, "MIN_NATIVE_FEATURES_BARE", 1)
    monkeypatch.setattr(module, "MIN_NATIVE_FEATURES_HALF", 1)


def randn(*shape, seed=0, dtype=torch.float32, grad=True):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    return x.requires_grad_(grad)


def norm(dim, *, rms=False, weight=True, bias=True, dtype=torch.float32):
    return NormParams(
        rms,
        randn(dim, seed=11, dtype=dtype) if weight else None,
        randn(dim, seed=12, dtype=dtype) if bias else None,
        1e-5,
    )


def skip_scale(kind, dim, dtype=torch.float32):
    return randn(dim, seed=13, dtype=dtype) if kind == "vector" else kind


def run_with_gradients(x, f, formula, scale, rate, *, seed=1, with_sum=True):
    """Return the outputs and the gradients of all tensor inputs."""
    inputs = [each for each in (x, f, *formula[1:3], scale) if isinstance(each, torch.Tensor)]
    torch.manual_seed(seed)
    if with_sum:
        outputs = add_norm_with_sum(x, f, formula, scale=scale, rate=rate)
    else:
        outputs = (add_norm(x, f, formula, scale=scale, rate=rate),)
    upstream = [
        randn(*each.shape, seed=20 + i, dtype=each.dtype, grad=False)
        for i, each in enumerate(outputs)
    ]
    return (*outputs, *torch.autograd.grad(outputs, inputs, upstream))


def assert_results_close(actual, expected, coarsest=torch.float64):
    """Compare within the rounding error of the coarsest dtype involved."""
    for one, other in zip(actual, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        scale = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
        atol = max(CLOSE[one.dtype], CLOSE[coarsest]) * scale
        torch.testing.assert_close(one, other, rtol=0, atol=atol, equal_nan=True)


def textbook(x, f, formula, scale, factor):
    """Compute sum and norm directly from the formulas of the papers."""
    s = scale * x + factor * f
    centred = s if formula.rms else s - s.mean(-1, keepdim=True)
    y = centred / ((centred**2).mean(-1, keepdim=True) + formula.eps).sqrt()
    y = y if formula.weight is None else y * formula.weight
    return s, y if formula.bias is None else y + formula.bias


# Reference implementation.


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1.7, "vector"])
def test_reference_matches_textbook(rms, weight, bias, scale):
    dtype = torch.float64
    x, f = randn(3, 7, 10, dtype=dtype), randn(3, 7, 10, seed=1, dtype=dtype)
    formula = norm(10, rms=rms, weight=weight, bias=bias, dtype=dtype)
    scale = skip_scale(scale, 10, dtype)
    actual = run_with_gradients(x, f, formula, scale, 0.3)
    torch.manual_seed(1)
    s, y = textbook(x, f, formula, scale, dropout_factors(f, sample_seed(), 0.3))
    inputs = [each for each in (x, f, *formula[1:3], scale) if isinstance(each, torch.Tensor)]
    upstream = [randn(3, 7, 10, seed=20 + i, dtype=dtype, grad=False) for i in range(2)]
    assert_results_close(actual, (s, y, *torch.autograd.grad((s, y), inputs, upstream)))


@pytest.mark.parametrize("rms", [False, True])
def test_reference_gradients_pass_gradcheck(rms):
    x, f = randn(4, 5, dtype=torch.float64), randn(4, 5, seed=1, dtype=torch.float64)
    _, weight, bias, eps = norm(5, rms=rms, dtype=torch.float64)
    scale = skip_scale("vector", 5, torch.float64)

    def run(x, f, weight, bias, scale):
        torch.manual_seed(0)
        return add_norm_with_sum(x, f, NormParams(rms, weight, bias, eps), scale=scale, rate=0.4)

    assert torch.autograd.gradcheck(run, (x, f, weight, bias, scale))


# Native library.


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("scale", [1.0, 1.7, "vector"])
@pytest.mark.parametrize("dtypes", ["float32 float32", "bfloat16 bfloat16", "float32 bfloat16"])
def test_native_matches_reference(level, rms, rate, scale, dtypes):
    x_dtype, f_dtype = (getattr(torch, name) for name in dtypes.split())
    for shape, with_sum in (((3, 7, 10), True), ((131, 77), False), ((5, 64), True)):
        x, f = randn(*shape, dtype=x_dtype), randn(*shape, seed=1, dtype=f_dtype)
        formula, a = norm(shape[-1], rms=rms), skip_scale(scale, shape[-1])
        with library.use_level(level):
            actual = run_with_gradients(x, f, formula, a, rate, with_sum=with_sum)
        with library.use_level("off"):
            expected = run_with_gradients(x, f, formula, a, rate, with_sum=with_sum)
        assert_results_close(actual, expected, f_dtype)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 300),
    dim=st.integers(1, 150),
    rms=st.booleans(),
    weight=st.booleans(),
    bias=st.booleans(),
    rate=st.sampled_from([0.0, 0.5]),
)
def test_native_matches_reference_for_any_shape(level, rows, dim, rms, weight, bias, rate):
    x, f = randn(rows, dim), randn(rows, dim, seed=1)
    formula = norm(dim, rms=rms, weight=weight, bias=bias)
    formula = formula._replace(eps=1e-2)  # few features with a tiny variance amplify rounding
    with library.use_level(level):
        actual = run_with_gradients(x, f, formula, 1.0, rate)
    with library.use_level("off"):
        expected = run_with_gradients(x, f, formula, 1.0, rate)
    assert_results_close(actual, expected)


@pytest.mark.parametrize("level", LEVELS)
def test_results_do_not_depend_on_thread_count(level):
    x, f, formula = randn(1000, 48), randn(1000, 48, seed=1), norm(48)
    before, outputs = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with library.use_level(level):
                outputs.append(run_with_gradients(x, f, formula, skip_scale("vector", 48), 0.3))
    finally:
        torch.set_num_threads(before)
    for other in outputs[1:]:
        assert all(torch.equal(*pair) for pair in zip(outputs[0], other, strict=True))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unaligned_and_strided_memory(level, dtype):
    unaligned = randn(65 * 33 + 1, dtype=dtype, grad=False)[1:].view(65, 33).requires_grad_()
    transposed = randn(33, 65, seed=1, dtype=dtype, grad=False).T.requires_grad_()
    strided = NormParams(False, randn(66, seed=11)[::2], randn(66, seed=12)[::2], 1e-5)
    for x, f in ((unaligned, transposed), (transposed, unaligned)):
        with library.use_level(level):
            actual = run_with_gradients(x, f, strided, 1.0, 0.3)
        with library.use_level("off"):
            expected = run_with_gradients(x, f, strided, 1.0, 0.3)
        assert_results_close(actual, expected, dtype)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_values_propagate_as_in_torch(level, dtype, rms, value):
    x, f = randn(9, 20, dtype=dtype), randn(9, 20, seed=1, dtype=dtype)
    with torch.no_grad():
        x[2, 3], f[5, 19], f[7, 0] = value, value, value
    for rate in (0.0, 0.5):
        with library.use_level(level):
            actual = run_with_gradients(x, f, norm(20, rms=rms), 1.0, rate)
        with library.use_level("off"):
            expected = run_with_gradients(x, f, norm(20, rms=rms), 1.0, rate)
        for one, other in zip(actual, expected, strict=True):
            assert one.isfinite().equal(other.isfinite())


@pytest.mark.parametrize("level", BEST)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5), (4, 0)])
def test_empty_tensors(level, shape):
    x, f = randn(*shape), randn(*shape, seed=1)
    formula = NormParams(True, randn(shape[-1]), None, 1e-5)
    with library.use_level(level):
        s, y, *grads = run_with_gradients(x, f, formula, 1.0, 0.5)
    assert s.shape == y.shape == shape
    assert all((grad == 0).all() for grad in grads)


@pytest.mark.parametrize("level", BEST)
def test_gradient_of_one_input_equals_joint_gradient(level):
    x, f, formula = randn(20, 30), randn(20, 30, seed=1), norm(30)
    everything = [x, f, formula.weight, formula.bias]
    with library.use_level(level):
        torch.manual_seed(0)
        expected = torch.autograd.grad(add_norm(x, f, formula, rate=0.3).square().sum(), everything)
        for index, only in enumerate(everything):
            inputs = [each.detach() for each in everything]
            inputs[index] = only
            torch.manual_seed(0)
            y = add_norm(*inputs[:2], NormParams(False, *inputs[2:], 1e-5), rate=0.3)
            (grad,) = torch.autograd.grad(y.square().sum(), only)
            assert grad.equal(expected[index])


@pytest.mark.parametrize("level", BEST)
@pytest.mark.parametrize("which", [0, 1])
def test_gradients_with_one_output_unused(level, which):
    x, f, formula = randn(20, 30), randn(20, 30, seed=1), norm(30)
    grads = []
    for choice in (level, "off"):
        with library.use_level(choice):
            torch.manual_seed(0)
            output = add_norm_with_sum(x, f, formula, rate=0.3)[which]
            grads.append(torch.autograd.grad(output.square().sum(), (x, f)))
    assert_results_close(*grads)


@pytest.mark.parametrize("level", BEST)
def test_inference_mode_gives_same_outputs(level):
    x, f, formula = randn(20, 30), randn(20, 30, seed=1), norm(30)
    with library.use_level(level):
        expected = run_with_gradients(x, f, formula, 1.0, 0.3)[:2]
        torch.manual_seed(1)
        with torch.inference_mode():
            s, y = add_norm_with_sum(x, f, formula, rate=0.3)
            torch.manual_seed(1)
            assert add_norm(x, f, formula, rate=0.3).equal(y)
    assert s.equal(expected[0]) and y.equal(expected[1])


@pytest.mark.parametrize("level", BEST)
def test_second_order_gradients_match_reference(level):
    x, f, formula = randn(6, 9), randn(6, 9, seed=1), norm(9)
    scale = skip_scale("vector", 9)
    inputs, outputs = (x, f, *formula[1:3], scale), []
    for choice in (level, "off"):
        with library.use_level(choice):
            torch.manual_seed(0)
            s, y = add_norm_with_sum(x, f, formula, scale=scale, rate=0.3)
            first = torch.autograd.grad((s**2).sum() + (y**3).sum(), inputs, create_graph=True)
            outputs.append(torch.autograd.grad(sum((g**2).sum() for g in first), inputs))
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


# Dropout masks.


@pytest.mark.parametrize("level", BEST)
def test_seed_determines_dropout_mask(level):
    x, f, formula = randn(40, 30, grad=False), randn(40, 30, seed=1, grad=False), norm(30)
    with library.use_level(level):
        outputs = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            outputs.append([add_norm(x, f, formula, rate=0.3) for _ in range(2)])
    assert outputs[0][0].equal(outputs[1][0]) and outputs[0][1].equal(outputs[1][1])
    assert not outputs[0][0].equal(outputs[0][1])
    assert not outputs[0][0].equal(outputs[2][0])


@pytest.mark.parametrize("level", BEST)
def test_checkpoint_recomputes_with_same_mask(level):
    x, f, formula = randn(40, 30), randn(40, 30, seed=1), norm(30)

    def run(x, f):
        return add_norm(x, f * 2, formula, rate=0.3)

    grads = []
    with library.use_level(level):
        for recompute in (False, True):
            torch.manual_seed(0)
            y = checkpoint(run, x, f, use_reentrant=False) if recompute else run(x, f)
            torch.manual_seed(99)
            grads.append(torch.autograd.grad(y.square().sum(), (x, f, *formula[1:3])))
    assert all(torch.equal(*pair) for pair in zip(*grads, strict=True))


def test_native_and_fallback_draw_same_mask(monkeypatch):
    x, f, formula = randn(40, 30), randn(40, 30, seed=1), norm(30)
    large = run_with_gradients(x, f, formula, 1.0, 0.3)
    monkeypatch.setattr(module, "MIN_NATIVE_FEATURES", 1 << 30)
    assert_results_close(run_with_gradients(x, f, formula, 1.0, 0.3), large)


# Interaction with other torch features.


@pytest.mark.parametrize("level", BEST)
def test_torch_function_mode_sees_torch_operations(level):
    names = []

    class Recorder(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    with library.use_level(level), Recorder():
        add_norm(randn(40, 30), randn(40, 30, seed=1), norm(30))
    assert "layer_norm" in names and "add" in names


@pytest.mark.parametrize("level", BEST)
def test_per_sample_gradients_of_torch_func(level):
    x, f, formula = randn(4, 6, 30, grad=False), randn(4, 6, 30, seed=1, grad=False), norm(30)

    def loss(weight, x, f):
        return add_norm(x, f, formula._replace(weight=weight)).square().sum()

    weight = formula.weight.detach()
    with library.use_level(level):
        batched = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weight, x, f)
    single = torch.stack([torch.func.grad(loss)(weight, x[i], f[i]) for i in range(4)])
    torch.testing.assert_close(batched, single, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", BEST)
def test_autocast_keeps_stream_in_float32(level):
    x, h, table = randn(40, 32), randn(40, 32, seed=1), randn(32, 32, seed=2)
    outputs = []
    for choice in (level, "off"):
        with library.use_level(choice), torch.autocast("cpu", dtype=torch.bfloat16):
            f = h @ table
            assert f.dtype == torch.bfloat16
            s, y = add_norm_with_sum(x, f, norm(32))
            outputs.append((s, y, *torch.autograd.grad(y.float().square().sum(), (x, h))))
        assert s.dtype == y.dtype == torch.float32
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-1)


def test_invalid_arguments_raise():
    x, formula = randn(3, 7, 10), norm(10)
    with pytest.raises(
        UserError, match=r"expected tensors of one shape .* got \(3, 7, 10\) and \(7, 10\)"
    ):
        add_norm(x, randn(7, 10), formula)
    with pytest.raises(UserError, match=r"rate: expected a number from 0 to below 1, got 1\.0"):
        add_norm(x, x, formula, rate=1.0)
    with pytest.raises(UserError, match=r"gain: expected shape \(10,\), .* got \(9,\)"):
        add_norm(x, x, norm(9))
    with pytest.raises(UserError, match=r"scale: expected shape \(10,\), .* got \(1,\)"):
        add_norm(x, x, formula, scale=randn(1))


@pytest.mark.parametrize("level", BEST)
def test_native_layer_norm_without_dropout_needs_minimum_size(level, monkeypatch):
    monkeypatch.undo()
    with library.use_level(level):
        for dtype, rows in ((torch.float32, 8192), (torch.bfloat16, 512)):
            x = torch.zeros(rows, 64, dtype=dtype)
            assert module.native_is_faster(norm(64), 0.0, x)
            assert not module.native_is_faster(norm(64), 0.0, x[1:])
            assert module.native_is_faster(norm(64, rms=True), 0.0, x[1:])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_wider_than_one_block_of_draws(level, dtype):
    x, f, formula = randn(9, 555, dtype=dtype), randn(9, 555, seed=1, dtype=dtype), norm(555)
    with library.use_level(level):
        actual = run_with_gradients(x, f, formula, skip_scale("vector", 555), 0.3)
    with library.use_level("off"):
        expected = run_with_gradients(x, f, formula, skip_scale("vector", 555), 0.3)
    assert_results_close(actual, expected, dtype)
