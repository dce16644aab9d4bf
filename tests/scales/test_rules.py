"""The numbers of each rule against the table of the papers, written separately."""

import pytest

from addnorm.core.errors import UserError
from addnorm.scales import make_scale, registry

N, L = 4.0, 8.0  # ratios of width and depth
OPTIONS = "base_dim=32, base_depth=2"
SIZES = {"dim": 128, "depth": 16}


def adam_table(kind, a):
    """Rate, decay, epsilon of table 1 of CompleteP, with epsilon / width for all roles."""
    depth_rate, depth_eps = L ** (a - 1), L**-a
    return {
        "table": (1.0, 1.0, 1 / N),
        "matrix": (depth_rate / N, N, depth_eps / N),
        "vector": (depth_rate, 1.0, depth_eps / N),
        "map": (depth_rate / N, N, depth_eps),
    }[kind]


@pytest.mark.parametrize("kind", ["table", "matrix", "vector", "map"])
@pytest.mark.parametrize(("name", "a"), [("completep", 1.0), ("depth_mup", 0.5)])
def test_adam_factors_are_those_of_the_table(name, a, kind):
    rule = make_scale(f"{name}({OPTIONS})")
    depth = None if kind == "table" else SIZES["depth"]
    factors = rule.optimizer_factors(kind, "adam", dim=128, depth=depth, fan_in_ratio=N)
    assert factors == pytest.approx(adam_table(kind, a))


def test_mup_scales_no_depth():
    rule = make_scale("mup(base_dim=32)")
    factors = rule.optimizer_factors("matrix", "adam", dim=128, depth=16, fan_in_ratio=N)
    assert factors == pytest.approx((1 / N, N, 1 / N))
    assert rule.residual_multiplier(1000) == 1.0
    assert rule.output_multiplier(128) == 1 / N


@pytest.mark.parametrize(
    ("kind", "rate"), [("matrix", L), ("vector", N * L), ("map", L / N), ("table", N)]
)
def test_sgd_rates(kind, rate):
    rule = make_scale(f"completep({OPTIONS})")
    depth = None if kind == "table" else 16
    found = rule.optimizer_factors(kind, "sgd", dim=128, depth=depth, fan_in_ratio=N)
    assert found.lr == pytest.approx(rate)


def test_muon_rates():
    rule = make_scale(f"depth_mup({OPTIONS})")
    options = {"dim": 128, "depth": 16, "fan_in_ratio": N}
    assert rule.optimizer_factors("matrix", "muon", **options).lr == pytest.approx(L**-0.5)
    found = rule.optimizer_factors("matrix", "muon_match_rms", **options)
    assert found.lr == pytest.approx(L**-0.5 * N**-0.5)


def test_decay_exponent():
    rule = make_scale("mup(base_dim=32, decay_exponent=0.5)")
    found = rule.optimizer_factors("matrix", "adam", dim=128, depth=1, fan_in_ratio=N)
    assert found.weight_decay == pytest.approx(N**0.5)


@pytest.mark.parametrize("name", registry)
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "muon", "muon_match_rms", "adafactor"])
def test_every_factor_is_one_at_the_base(name, optimizer):
    required = {"base_dim": 64, "base_depth": 4}
    names = registry.member(name).required
    rule = make_scale(f"{name}({', '.join(f'{each}={required[each]}' for each in names)})")
    for kind in ("table", "matrix", "vector", "map"):
        found = rule.optimizer_factors(kind, optimizer, dim=64, depth=4)
        assert found == (1.0, 1.0, 1.0)
        assert rule.init_factor(kind, 1.0) == 1.0
    assert rule.residual_multiplier(4) == 1.0
    assert rule.output_multiplier(64) == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("mup", "scale: expected base_dim, the width of the base model"),
        ("depth_mup", "scale: expected base_depth, the number of layers"),
        ("completep(base_dim=64)", "scale: expected base_depth"),
        ("mup(base_dim=0)", "option 'base_dim'"),
        ("mup(base_width=64)", "has no option 'base_width'"),
        ("mu_p", "unknown scale 'mu_p'"),
    ],
)
def test_calls_that_are_refused(call, message):
    with pytest.raises(UserError, match=message):
        make_scale(call)


def test_heads_that_do_not_divide_the_base():
    rule = make_scale("mup(base_dim=64)")
    with pytest.raises(UserError, match="add base_head_dim"):
        rule.find_base_head_dim(dim=96, heads=12, head_dim=None)
    assert rule.find_base_head_dim(dim=128, heads=4, head_dim=None) == 16
    assert rule.find_base_head_dim(dim=128, heads=4, head_dim=32) == 32
