"""Dropout, add and norm in one go: against the textbook, and the native library against that."""

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

LEVELS = library.levels() or [
    pytest.param("", marks=pytest.mark.skip(library.get_availability().reason))
]
BEST = LEVELS[-1:]
# In bfloat16 both implementations round the same float32 numbers, up to float32's own error, and at
# the same places. So they differ by one unit in the last place at most, 2^-7 of the value.
CLOSE = {torch.float32: 2e-5, torch.bfloat16: 2.0**-7, torch.float64: 1e-12}


@pytest.fixture(autouse=True)
def no_size_is_too_small(monkeypatch):
    monkeypatch.setattr(module, "MIN_NATIVE_FEATURES", 1)
    monkeypatch.setattr(module, "MIN_NATIVE_FEATURES_BARE", 1)
    monkeypatch.setattr(module, "MIN_NATIVE_FEATURES_HALF", 1)


def drawn(*shape, seed=0, dtype=torch.float32, grad=True):
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    return made.requires_grad_(grad)


def norm(dim, *, rms=False, weight=True, bias=True, dtype=torch.float32):
    return NormParams(
        rms,
        drawn(dim, seed=11, dtype=dtype) if weight else None,
        drawn(dim, seed=12, dtype=dtype) if bias else None,
        1e-5,
    )


def skip_scale(kind, dim, dtype=torch.float32):
    return drawn(dim, seed=13, dtype=dtype) if kind == "vector" else kind


def outcome(x, f, formula, scale, rate, *, seed=1, whole=True):
    """Values and gradients of everything that has one."""
    inputs = [each for each in (x, f, *formula[1:3], scale) if isinstance(each, torch.Tensor)]
    torch.manual_seed(seed)
    if whole:
        made = add_norm_with_sum(x, f, formula, scale=scale, rate=rate)
    else:
        made = (add_norm(x, f, formula, scale=scale, rate=rate),)
    upstream = [
        drawn(*each.shape, seed=20 + i, dtype=each.dtype, grad=False) for i, each in enumerate(made)
    ]
    return (*made, *torch.autograd.grad(made, inputs, upstream))


def assert_alike(mine, theirs, coarsest=torch.float64):
    """As close as the coarsest type that took part allows."""
    for one, other in zip(mine, theirs, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        scale = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
        close = max(CLOSE[one.dtype], CLOSE[coarsest]) * scale
        torch.testing.assert_close(one, other, rtol=0, atol=close, equal_nan=True)


def textbook(x, f, formula, scale, factor):
    """As one would write it from the papers."""
    s = scale * x + factor * f
    centred = s if formula.rms else s - s.mean(-1, keepdim=True)
    y = centred / ((centred**2).mean(-1, keepdim=True) + formula.eps).sqrt()
    y = y if formula.weight is None else y * formula.weight
    return s, y if formula.bias is None else y + formula.bias


# The definition.


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1.7, "vector"])
def test_the_definition_is_the_textbooks(rms, weight, bias, scale):
    dtype = torch.float64
    x, f = drawn(3, 7, 10, dtype=dtype), drawn(3, 7, 10, seed=1, dtype=dtype)
    formula = norm(10, rms=rms, weight=weight, bias=bias, dtype=dtype)
    scale = skip_scale(scale, 10, dtype)
    mine = outcome(x, f, formula, scale, 0.3)
    torch.manual_seed(1)
    s, y = textbook(x, f, formula, scale, dropout_factors(f, sample_seed(), 0.3))
    inputs = [each for each in (x, f, *formula[1:3], scale) if isinstance(each, torch.Tensor)]
    upstream = [drawn(3, 7, 10, seed=20 + i, dtype=dtype, grad=False) for i in range(2)]
    assert_alike(mine, (s, y, *torch.autograd.grad((s, y), inputs, upstream)))


@pytest.mark.parametrize("rms", [False, True])
def test_gradients_of_the_definition_are_those_of_differences(rms):
    x, f = drawn(4, 5, dtype=torch.float64), drawn(4, 5, seed=1, dtype=torch.float64)
    _, weight, bias, eps = norm(5, rms=rms, dtype=torch.float64)
    scale = skip_scale("vector", 5, torch.float64)

    def run(x, f, weight, bias, scale):
        torch.manual_seed(0)
        return add_norm_with_sum(x, f, NormParams(rms, weight, bias, eps), scale=scale, rate=0.4)

    assert torch.autograd.gradcheck(run, (x, f, weight, bias, scale))


# The native library.


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("scale", [1.0, 1.7, "vector"])
@pytest.mark.parametrize("dtypes", ["float32 float32", "bfloat16 bfloat16", "float32 bfloat16"])
def test_the_library_computes_the_definition(level, rms, rate, scale, dtypes):
    of_x, of_f = (getattr(torch, name) for name in dtypes.split())
    for shape, whole in (((3, 7, 10), True), ((131, 77), False), ((5, 64), True)):
        x, f = drawn(*shape, dtype=of_x), drawn(*shape, seed=1, dtype=of_f)
        formula, a = norm(shape[-1], rms=rms), skip_scale(scale, shape[-1])
        with library.use_level(level):
            mine = outcome(x, f, formula, a, rate, whole=whole)
        with library.use_level("off"):
            theirs = outcome(x, f, formula, a, rate, whole=whole)
        assert_alike(mine, theirs, of_f)


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
def test_any_rows_and_features(level, rows, dim, rms, weight, bias, rate):
    x, f = drawn(rows, dim), drawn(rows, dim, seed=1)
    formula = norm(dim, rms=rms, weight=weight, bias=bias)
    formula = formula._replace(eps=1e-2)  # few features with a tiny variance amplify rounding
    with library.use_level(level):
        mine = outcome(x, f, formula, 1.0, rate)
    with library.use_level("off"):
        theirs = outcome(x, f, formula, 1.0, rate)
    assert_alike(mine, theirs)


@pytest.mark.parametrize("level", LEVELS)
def test_threads_change_no_bit(level):
    x, f, formula = drawn(1000, 48), drawn(1000, 48, seed=1), norm(48)
    before, made = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            with library.use_level(level):
                made.append(outcome(x, f, formula, skip_scale("vector", 48), 0.3))
    finally:
        torch.set_num_threads(before)
    for other in made[1:]:
        assert all(torch.equal(*pair) for pair in zip(made[0], other, strict=True))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_that_is_not_aligned_or_not_dense(level, dtype):
    loose = drawn(65 * 33 + 1, dtype=dtype, grad=False)[1:].view(65, 33).requires_grad_()
    turned = drawn(33, 65, seed=1, dtype=dtype, grad=False).T.requires_grad_()
    every_other = NormParams(False, drawn(66, seed=11)[::2], drawn(66, seed=12)[::2], 1e-5)
    for x, f in ((loose, turned), (turned, loose)):
        with library.use_level(level):
            mine = outcome(x, f, every_other, 1.0, 0.3)
        with library.use_level("off"):
            theirs = outcome(x, f, every_other, 1.0, 0.3)
        assert_alike(mine, theirs, dtype)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_shows_where_torch_shows_it(level, dtype, rms, value):
    x, f = drawn(9, 20, dtype=dtype), drawn(9, 20, seed=1, dtype=dtype)
    with torch.no_grad():
        x[2, 3], f[5, 19], f[7, 0] = value, value, value
    for rate in (0.0, 0.5):
        with library.use_level(level):
            mine = outcome(x, f, norm(20, rms=rms), 1.0, rate)
        with library.use_level("off"):
            theirs = outcome(x, f, norm(20, rms=rms), 1.0, rate)
        for one, other in zip(mine, theirs, strict=True):
            assert one.isfinite().equal(other.isfinite())


@pytest.mark.parametrize("level", BEST)
@pytest.mark.parametrize("shape", [(0, 5), (3, 0, 5), (4, 0)])
def test_no_tokens_and_no_features(level, shape):
    x, f = drawn(*shape), drawn(*shape, seed=1)
    formula = NormParams(True, drawn(shape[-1]), None, 1e-5)
    with library.use_level(level):
        s, y, *grads = outcome(x, f, formula, 1.0, 0.5)
    assert s.shape == y.shape == shape
    assert all((grad == 0).all() for grad in grads)


@pytest.mark.parametrize("level", BEST)
def test_gradients_only_for_who_wants_them(level):
    x, f, formula = drawn(20, 30), drawn(20, 30, seed=1), norm(30)
    everything = [x, f, formula.weight, formula.bias]
    with library.use_level(level):
        torch.manual_seed(0)
        wanted = torch.autograd.grad(add_norm(x, f, formula, rate=0.3).square().sum(), everything)
        for index, only in enumerate(everything):
            alone = [each.detach() for each in everything]
            alone[index] = only
            torch.manual_seed(0)
            y = add_norm(*alone[:2], NormParams(False, *alone[2:], 1e-5), rate=0.3)
            (grad,) = torch.autograd.grad(y.square().sum(), only)
            assert grad.equal(wanted[index])


@pytest.mark.parametrize("level", BEST)
@pytest.mark.parametrize("which", [0, 1])
def test_either_result_may_go_unused(level, which):
    x, f, formula = drawn(20, 30), drawn(20, 30, seed=1), norm(30)
    grads = []
    for choice in (level, "off"):
        with library.use_level(choice):
            torch.manual_seed(0)
            made = add_norm_with_sum(x, f, formula, rate=0.3)[which]
            grads.append(torch.autograd.grad(made.square().sum(), (x, f)))
    assert_alike(*grads)


@pytest.mark.parametrize("level", BEST)
def test_without_gradients_it_is_the_same(level):
    x, f, formula = drawn(20, 30), drawn(20, 30, seed=1), norm(30)
    with library.use_level(level):
        wanted = outcome(x, f, formula, 1.0, 0.3)[:2]
        torch.manual_seed(1)
        with torch.inference_mode():
            s, y = add_norm_with_sum(x, f, formula, rate=0.3)
            torch.manual_seed(1)
            assert add_norm(x, f, formula, rate=0.3).equal(y)
    assert s.equal(wanted[0]) and y.equal(wanted[1])


@pytest.mark.parametrize("level", BEST)
def test_gradients_have_gradients(level):
    x, f, formula = drawn(6, 9), drawn(6, 9, seed=1), norm(9)
    scale = skip_scale("vector", 9)
    inputs, made = (x, f, *formula[1:3], scale), []
    for choice in (level, "off"):
        with library.use_level(choice):
            torch.manual_seed(0)
            s, y = add_norm_with_sum(x, f, formula, scale=scale, rate=0.3)
            first = torch.autograd.grad((s**2).sum() + (y**3).sum(), inputs, create_graph=True)
            made.append(torch.autograd.grad(sum((g**2).sum() for g in first), inputs))
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


# Chance.


@pytest.mark.parametrize("level", BEST)
def test_a_seed_fixes_it_and_another_changes_it(level):
    x, f, formula = drawn(40, 30, grad=False), drawn(40, 30, seed=1, grad=False), norm(30)
    with library.use_level(level):
        made = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            made.append([add_norm(x, f, formula, rate=0.3) for _ in range(2)])
    assert made[0][0].equal(made[1][0]) and made[0][1].equal(made[1][1])
    assert not made[0][0].equal(made[0][1])
    assert not made[0][0].equal(made[2][0])


@pytest.mark.parametrize("level", BEST)
def test_recomputed_activations_meet_the_same_draws(level):
    x, f, formula = drawn(40, 30), drawn(40, 30, seed=1), norm(30)

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


def test_small_tensors_meet_the_same_draws_as_large_ones(monkeypatch):
    x, f, formula = drawn(40, 30), drawn(40, 30, seed=1), norm(30)
    large = outcome(x, f, formula, 1.0, 0.3)
    monkeypatch.setattr(module, "MIN_NATIVE_FEATURES", 1 << 30)
    assert_alike(outcome(x, f, formula, 1.0, 0.3), large)


# Who else is there.


@pytest.mark.parametrize("level", BEST)
def test_whoever_records_sees_the_operations_of_torch(level):
    seen = []

    class Recorder(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    with library.use_level(level), Recorder():
        add_norm(drawn(40, 30), drawn(40, 30, seed=1), norm(30))
    assert "layer_norm" in seen and "add" in seen


@pytest.mark.parametrize("level", BEST)
def test_per_sample_gradients_of_torch_func(level):
    x, f, formula = drawn(4, 6, 30, grad=False), drawn(4, 6, 30, seed=1, grad=False), norm(30)

    def loss(weight, x, f):
        return add_norm(x, f, formula._replace(weight=weight)).square().sum()

    weight = formula.weight.detach()
    with library.use_level(level):
        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weight, x, f)
    single = torch.stack([torch.func.grad(loss)(weight, x[i], f[i]) for i in range(4)])
    torch.testing.assert_close(each, single, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", BEST)
def test_under_autocast_the_stream_stays_in_float32(level):
    x, h, table = drawn(40, 32), drawn(40, 32, seed=1), drawn(32, 32, seed=2)
    made = []
    for choice in (level, "off"):
        with library.use_level(choice), torch.autocast("cpu", dtype=torch.bfloat16):
            f = h @ table
            assert f.dtype == torch.bfloat16
            s, y = add_norm_with_sum(x, f, norm(32))
            made.append((s, y, *torch.autograd.grad(y.float().square().sum(), (x, h))))
        assert s.dtype == y.dtype == torch.float32
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-1)


def test_what_does_not_fit_is_refused():
    x, formula = drawn(3, 7, 10), norm(10)
    with pytest.raises(
        UserError, match=r"expected tensors of one shape .* got \(3, 7, 10\) and \(7, 10\)"
    ):
        add_norm(x, drawn(7, 10), formula)
    with pytest.raises(UserError, match=r"rate: expected a number from 0 to below 1, got 1\.0"):
        add_norm(x, x, formula, rate=1.0)
    with pytest.raises(UserError, match=r"gain: expected shape \(10,\), .* got \(9,\)"):
        add_norm(x, x, norm(9))
    with pytest.raises(UserError, match=r"scale: expected shape \(10,\), .* got \(1,\)"):
        add_norm(x, x, formula, scale=drawn(1))


@pytest.mark.parametrize("level", BEST)
def test_layer_norm_without_dropout_is_ours_where_it_is_large_or_in_bfloat16(level, monkeypatch):
    monkeypatch.undo()
    with library.use_level(level):
        for dtype, rows in ((torch.float32, 8192), (torch.bfloat16, 512)):
            x = torch.zeros(rows, 64, dtype=dtype)
            assert module.native_is_faster(norm(64), 0.0, x)
            assert not module.native_is_faster(norm(64), 0.0, x[1:])
            assert module.native_is_faster(norm(64, rms=True), 0.0, x[1:])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_more_features_than_are_drawn_at_once(level, dtype):
    x, f, formula = drawn(9, 555, dtype=dtype), drawn(9, 555, seed=1, dtype=dtype), norm(555)
    with library.use_level(level):
        mine = outcome(x, f, formula, skip_scale("vector", 555), 0.3)
    with library.use_level("off"):
        theirs = outcome(x, f, formula, skip_scale("vector", 555), 0.3)
    assert_alike(mine, theirs, dtype)
