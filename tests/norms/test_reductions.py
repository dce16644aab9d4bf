"""Norms of single tokens: closed forms, special cases and claims of their papers."""

import math

import pytest
import torch

from addnorm.norms import make_norm
from tests.norms.cases import (
    DIM,
    F64,
    SHAPE,
    double,
    fresh,
    gradient,
    jacobian,
    mean,
    randn,
    tokens,
)

close = torch.testing.assert_close


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("layer(eps=0.0)", [-1.3416408, -0.4472136, 0.4472136, 1.3416408]),
        ("layer(eps=0.0, var=unbiased)", [-1.1618950, -0.3872983, 0.3872983, 1.1618950]),
        ("detach(eps=0.0)", [-1.3416408, -0.4472136, 0.4472136, 1.3416408]),
        ("group(groups=2, eps=0.0)", [-1.0, 1.0, -1.0, 1.0]),
        ("rms(eps=0.0)", [0.3651484, 0.7302967, 1.0954451, 1.4605935]),
        ("scale", [0.3651484, 0.7302967, 1.0954451, 1.4605935]),
        ("l2", [0.1825742, 0.3651484, 0.5477226, 0.7302967]),
        ("fixnorm(length=2.0)", [0.3651484, 0.7302967, 1.0954451, 1.4605935]),
        ("rms(eps=0.0, share=0.5)", [0.6324555, 1.2649111, 1.8973666, 2.5298221]),
        ("ada(eps=0.0)", [-1.5216408, -0.4672136, 0.4272136, 1.1616408]),
        ("dyt", [0.4621172, 0.7615942, 0.9051483, 0.9640276]),
        ("derf", [0.5204999, 0.8427008, 0.9661051, 0.9953223]),
        ("none", [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_values_computed_by_hand(call, expected):
    y = fresh(call, 4)(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=F64))
    close(y, torch.tensor(expected, dtype=F64), rtol=0, atol=6e-8)


# LayerNorm


def test_layer_has_mean_zero_and_the_stated_sum_of_squares():
    x = tokens(*SHAPE)
    y, v, eps = fresh("layer(eps=0.1)")(x), x.var(-1, correction=0), 0.1
    close(y.sum(-1), torch.zeros(SHAPE[:-1], dtype=F64))
    close(y.square().sum(-1), DIM * v / (v + eps))


def test_layer_scale_is_equivalent_to_eps():
    x = tokens(*SHAPE)
    close(fresh("layer(eps=0.36)")(3 * x), fresh("layer(eps=0.04)")(x))
    close(fresh("layer(eps=0.04)")(-x), -fresh("layer(eps=0.04)")(x))


def test_layer_gradient_has_the_closed_form():
    norm, x, g = double("layer(eps=0.1)"), tokens(*SHAPE), randn(*SHAPE, seed=3, dtype=F64)
    v = x.var(-1, correction=0, keepdim=True)
    s = (v + 0.1).sqrt()
    centered = x - mean(x)
    hat, h = centered / s, norm.weight * g
    ours = gradient(norm, x, g)
    close(ours, (h - mean(h) - hat * mean(h * hat)) / s)
    close(ours.sum(-1), torch.zeros(SHAPE[:-1], dtype=F64))
    along = DIM * mean(h * hat) * 0.1 / (v + 0.1)
    close((ours * centered).sum(-1, keepdim=True), along)


def test_layer_is_idempotent():
    norm, x = fresh("layer(eps=0.0)"), tokens(*SHAPE)
    close(norm(norm(x)), norm(x))


def test_layer_jacobian_is_bounded_by_gain_over_deviation():
    norm, x = double("layer(eps=0.1)"), tokens(DIM)
    bound = norm.weight.abs().max() / (x.var(correction=0) + 0.1).sqrt()
    spectral = torch.linalg.matrix_norm(jacobian(norm, x), ord=2)
    assert 0.5 * bound < spectral <= bound


@pytest.mark.parametrize("mode", ["inside", "outside"])
@pytest.mark.parametrize("dim", [2, 64, 512])
def test_unbiased_layer_is_shorter_by_a_known_ratio(dim, mode):
    x = tokens(3, dim)
    unbiased = fresh(f"layer(eps=0.0, var=unbiased, eps_mode={mode})", dim)
    close(unbiased(x), math.sqrt((dim - 1) / dim) * fresh("layer(eps=0.0)", dim)(x))
    close(unbiased(x).square().sum(-1), torch.full((3,), dim - 1.0, dtype=F64))


@pytest.mark.parametrize(
    ("call", "amplification"),
    [
        ("layer(eps=1e-05)", 1e5**0.5),
        ("layer(eps=1e-05, var=unbiased)", 1e5**0.5),
        ("layer(eps=1e-05, eps_mode=outside)", 1e5),
        ("layer(eps=1e-05, var=unbiased, eps_mode=outside)", 1e5),
    ],
)
def test_gradient_of_a_constant_token_depends_on_eps_mode(call, amplification):
    x = torch.full((DIM,), 3.0, dtype=F64)
    centering = torch.eye(DIM, dtype=F64) - 1 / DIM
    close(jacobian(fresh(call), x), amplification * centering)


@pytest.mark.parametrize("call", ["layer", "layer(var=unbiased)", "layer(eps_mode=outside)"])
def test_layer_of_one_feature_returns_its_bias(call):
    norm = double(call, 1)
    close(norm(tokens(5, 1)), norm.bias.expand(5, 1))


# RMSNorm


def test_rms_has_the_stated_mean_square_and_gradient():
    norm, x, g = double("rms(eps=0.1)"), tokens(*SHAPE), randn(*SHAPE, seed=3, dtype=F64)
    ms = mean(x * x)
    s, h = (ms + 0.1).sqrt(), norm.weight * g
    hat = x / s
    close(mean(fresh("rms(eps=0.1)")(x).square()), ms / (ms + 0.1))
    ours = gradient(norm, x, g)
    close(ours, (h - hat * mean(h * hat)) / s)
    close((ours * x).sum(-1, keepdim=True), DIM * mean(h * hat) * 0.1 / (ms + 0.1))


def test_rms_is_layer_exactly_on_centred_tokens():
    x = tokens(*SHAPE)
    rms, layer = fresh("rms(eps=0.1)"), fresh("layer(eps=0.1, affine=False)")
    close(rms(x - mean(x)), layer(x))
    assert (rms(x) - layer(x)).abs().max() > 0.1  # rms does not subtract the mean


@pytest.mark.parametrize(("mode", "slope"), [("inside", 1e4), ("outside", 1e8)])
def test_gradient_of_a_zero_token_depends_on_eps_mode(mode, slope):
    norm = fresh(f"rms(eps=1e-08, eps_mode={mode})")
    close(jacobian(norm, torch.zeros(DIM, dtype=F64)), slope * torch.eye(DIM, dtype=F64))


def test_one_plus_gain_is_stored_as_an_offset():
    """1 + 0.001 is 1 in bfloat16; a gain stored as 0.001 must not be rounded away."""
    norm = make_norm("rms(gain=one_plus)", DIM).to(torch.bfloat16)
    torch.nn.init.constant_(norm.weight, 0.001)
    x = randn(*SHAPE)
    exact = norm.weight[0].item() + 1
    close(norm(x), exact * make_norm("rms(affine=False)", DIM)(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("dim", "share", "k"), [(10, 0.3, 3), (10, 0.0, 1), (10, 0.05, 1), (16, 0.0625, 1), (7, 0.5, 3)]
)
def test_partial_rms_uses_the_first_features_only(dim, share, k):
    norm, x = double(f"rms(eps=0.0, share={share})", dim), tokens(dim)
    y = fresh(f"rms(eps=0.0, share={share})", dim)(x)
    close(y[:k].square().mean(), torch.tensor(1.0, dtype=F64))
    rest = jacobian(norm, x)[:, k:]
    size = x[:k].square().mean().sqrt()
    expected = torch.diag(norm.weight / size)[:, k:]
    close(rest, expected)


# Norms of length


def test_scale_projects_tokens_to_a_sphere():
    norm, x, g = double("scale"), tokens(*SHAPE), randn(*SHAPE, seed=3, dtype=F64)
    assert [tuple(p.shape) for p in norm.parameters()] == [()]
    close(norm(x).norm(dim=-1), norm.g.abs().expand(SHAPE[:-1]))
    close((gradient(norm, x, g) * x).sum(-1), torch.zeros(SHAPE[:-1], dtype=F64))
    shared = fresh("rms(eps=0.0)")
    shared.set_gain(norm.g.item() / DIM**0.5)
    close(norm(x), shared(x))


def test_scale_is_linear_below_eps():
    norm = fresh("scale(eps=0.01)")
    x = 1e-4 * randn(DIM, dtype=F64)
    close(norm(x), DIM**0.5 * x / 0.01)
    close(jacobian(norm, x), DIM**0.5 / 0.01 * torch.eye(DIM, dtype=F64))


def test_l2_returns_unit_vectors_and_keeps_zeros():
    norm, x = fresh("l2"), tokens(*SHAPE)
    close(norm(x).norm(dim=-1), torch.ones(SHAPE[:-1], dtype=F64))
    close(norm(1e-9 * x), norm(x))
    assert not norm(torch.zeros(DIM)).any()


def test_fixnorm_rows_never_shrink():
    """The gradient is orthogonal to its row, so any step makes the raw row longer."""
    norm, table = fresh("fixnorm(length=3.0)"), tokens(20, DIM)
    close(norm(table).norm(dim=-1), torch.full((20,), 3.0, dtype=F64))
    g = gradient(norm, table, randn(20, DIM, seed=3, dtype=F64))
    close((g * table).sum(-1), torch.zeros(20, dtype=F64))
    assert ((table - 0.1 * g).norm(dim=-1) > table.norm(dim=-1)).all()


def test_fixnorm_and_scale_bound_the_logits():
    rows, last = fresh("fixnorm")(tokens(20, DIM)), double("scale")
    hidden = last(tokens(*SHAPE, seed=4))
    logits = hidden @ rows.T
    assert logits.abs().max() <= last.g
    close((hidden @ fresh("fixnorm")(7 * tokens(20, DIM)).T), logits)
    best = last(rows[:1].detach())  # a hidden vector along a row reaches the bound
    close((best @ rows.T).max(), last.g)


# AdaNorm and DetachNorm


def test_ada_has_the_stated_means():
    x = tokens(*SHAPE)
    flat = torch.ones(*SHAPE[:-1], 1, dtype=F64)
    close(mean(fresh("ada(scale=2.0, k=0.3, eps=0.0)")(x)), -0.6 * flat)
    unbiased = fresh("ada(scale=2.0, k=0.3, eps=0.0, var=unbiased)")
    close(mean(unbiased(x)), -0.6 * (DIM - 1) / DIM * flat)
    y = fresh("layer(eps=0.0)")(x)
    close(mean(fresh("ada(scale=2.0, k=0.3, eps=0.0)")(x) / y), 2 * flat)


def test_ada_factor_carries_no_gradient():
    x, g = tokens(*SHAPE), randn(*SHAPE, seed=3, dtype=F64)
    simple = fresh("layer(eps=0.0, affine=False)")
    y = simple(x).detach()
    ours = gradient(fresh("ada(scale=2.0, k=0.3, eps=0.0)"), x, g)
    close(ours, gradient(simple, x, 2 * (1 - 0.3 * y) * g))
    close(ours.sum(-1), torch.zeros(SHAPE[:-1], dtype=F64))
    undetached = gradient(simple, x, 2 * (1 - 2 * 0.3 * y) * g)
    assert (ours - undetached).abs().max() > 0.1


@pytest.mark.parametrize(("dim", "flips"), [(101, False), (103, True)])
def test_ada_flips_a_single_large_feature_beyond_101_features(dim, flips):
    """The largest standardized value is sqrt(dim - 1); beyond 10 the factor is negative."""
    x = torch.zeros(dim, dtype=F64)
    x[0] = 1000
    z = fresh("ada(eps=0.0)", dim)(x)
    assert (z[0].item() < -1e-9) is flips


@pytest.mark.parametrize(("var", "freedom"), [("biased", DIM), ("unbiased", DIM - 1)])
def test_detach_has_four_gradients(var, freedom):
    x, g = tokens(*SHAPE), randn(*SHAPE, seed=3, dtype=F64)
    s = x.std(-1, correction=DIM - freedom, keepdim=True)
    y = (x - mean(x)) / s
    along = y * (g * y).sum(-1, keepdim=True) / freedom
    expected = {
        f"detach(which=both, eps=0.0, var={var})": g / s,
        f"detach(which=mean, eps=0.0, var={var})": (g - along) / s,
        f"detach(which=std, eps=0.0, var={var})": (g - mean(g)) / s,
        f"layer(eps=0.0, affine=False, var={var})": (g - mean(g) - along) / s,
    }
    outputs = [fresh(call)(x) for call in expected]
    for call, closed_form in expected.items():
        close(gradient(fresh(call), x, g), closed_form)
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[1], outputs[2])
    close(outputs[2], outputs[3])


def test_detached_mean_passes_the_gradient_of_a_shift():
    x, g = tokens(*SHAPE), randn(*SHAPE, seed=3, dtype=F64)
    s = x.std(-1, correction=0)
    close(gradient(fresh("detach(eps=0.0)"), x, g).sum(-1), g.sum(-1) / s)


# GroupNorm


def test_group_standardizes_every_group_separately():
    x = tokens(*SHAPE)
    y = fresh("group(groups=2, eps=0.1)")(x)
    for part, raw in zip(y.chunk(2, -1), x.chunk(2, -1), strict=True):
        v = raw.var(-1, correction=0)
        close(part.mean(-1), torch.zeros(SHAPE[:-1], dtype=F64))
        close(part.square().mean(-1), v / (v + 0.1))
    blocks = jacobian(double("group(groups=2)"), tokens(DIM))
    assert not blocks[:5, 5:].any() and not blocks[5:, :5].any()
    assert blocks[:5, :5].all() and blocks[5:, 5:].all()


@pytest.mark.parametrize(
    ("dim", "groups"), [(1, 1), (2, 1), (3, 1), (7, 1), (8, 2), (10, 2), (16, 4), (36, 6), (512, 8)]
)
def test_group_chooses_the_largest_divisor_that_leaves_four_features(dim, groups):
    assert make_norm("group", dim).groups == groups


# DyT and Derf


@pytest.mark.parametrize("call", ["dyt", "derf"])
def test_squashing_bounds_each_feature(call):
    norm, x = double(call), tokens(*SHAPE)
    y = norm(1e3 * x)
    assert ((y - norm.bias).abs() <= norm.weight.abs()).all()
    close((y - norm.bias).abs().amax((0, 1)), norm.weight.abs())  # and the bound is reached
    matrix = jacobian(norm, x[0, 0].detach())
    assert torch.equal(matrix, torch.diag(matrix.diag())) and matrix.diag().all()
    order = torch.arange(DIM).flip(0)
    plain = fresh(call)
    close(plain(x[..., order]), plain(x)[..., order])


@pytest.mark.parametrize("call", ["dyt", "derf"])
def test_squashing_is_odd_at_start_and_monotone(call):
    norm, x = fresh(call), torch.linspace(-6, 6, 61, dtype=F64)[:, None].expand(61, DIM)
    close(norm(-x), -norm(x))
    assert (norm(x).diff(dim=0) > 0).all()


def test_dyt_and_derf_slopes_at_zero():
    zero = torch.zeros(DIM, dtype=F64)
    dyt, derf = double("dyt"), double("derf")
    close(jacobian(dyt, zero).diag(), dyt.weight.detach() * dyt.alpha.detach())
    slope = derf.alpha * 2 / math.pi**0.5 * torch.exp(-(derf.shift**2))
    close(jacobian(derf, zero).diag(), (derf.weight * slope).detach())
    steeper, flatter = (jacobian(fresh(f"{name}(alpha=0.7)"), zero) for name in ("derf", "dyt"))
    close(steeper, 2 / math.pi**0.5 * flatter)


def test_dyt_jacobian_is_the_slope_of_the_tanh():
    norm, x = double("dyt"), tokens(DIM)
    expected = norm.weight * norm.alpha * (1 - torch.tanh(norm.alpha * x) ** 2)
    close(jacobian(norm, x).diag(), expected)


# adaLN


def test_ada_ln_starts_as_layer_norm_for_any_condition():
    norm, x = fresh("ada_ln(cond_dim=3)"), tokens(*SHAPE)
    expected = fresh("layer(eps=1e-06, affine=False)")(x)
    for cond in (None, randn(3, 3, dtype=F64), 1e3 * randn(3, 7, 3, dtype=F64)):
        close(norm(x, cond=cond), expected)


def test_ada_ln_condition_has_a_gradient_after_one_step():
    """With zero weights the condition gets no gradient; after one step it does."""
    norm, x = fresh("ada_ln(cond_dim=3)"), tokens(*SHAPE)
    cond, g = randn(3, 3, dtype=F64).requires_grad_(), randn(*SHAPE, seed=3, dtype=F64)
    first = torch.autograd.grad((norm(x, cond=cond) * g).sum(), [cond, norm.weight, norm.bias])
    assert not first[0].any() and first[1].all() and first[2].all()
    with torch.no_grad():
        norm.weight -= 0.1 * first[1]
    (second,) = torch.autograd.grad((norm(x, cond=cond) * g).sum(), [cond])
    assert second.all()


def test_ada_ln_broadcasts_the_condition():
    norm, x = double("ada_ln(cond_dim=3)"), tokens(*SHAPE)
    one, each = randn(3, dtype=F64), randn(3, 3, dtype=F64)
    close(norm(x, cond=one), norm(x, cond=one.expand(3, 7, 3)))
    close(norm(x, cond=each), norm(x, cond=each[:, None].expand(3, 7, 3)))
    close(norm(x, cond=None), norm(x, cond=torch.zeros(3, 3, dtype=F64)))
    close(norm(x[0, 0], cond=one), norm(x, cond=one)[0, 0])
    close(norm(x, cond=each.bfloat16()), norm(x, cond=each.bfloat16().double()))


def test_ada_ln_scales_by_one_plus_scale():
    norm, x = fresh("ada_ln"), tokens(*SHAPE)
    with torch.no_grad():
        norm.bias[:DIM] = 5
        norm.bias[DIM:] = 2
    close(norm(x), 3 * fresh("ada_ln")(x) + 5)


def test_none_returns_the_input():
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        x = randn(*SHAPE, dtype=dtype)
        assert torch.equal(make_norm("none", DIM)(x), x)
