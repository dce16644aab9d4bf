"""Initialization: constants of the papers and statistics of the initial weights."""

import math

import pytest
import torch
from torch import nn

from addnorm import Decoder, Encoder, Stack
from addnorm.core import Call, Plan, UserError
from addnorm.core.errors import WeightsNotInitializedWarning
from addnorm.stacks import init
from addnorm.wirings import make_wiring, registry
from tests.helpers import tokens


def plan(role: str, depth: int, other: int | None = None) -> Plan:
    kinds = ("self", "cross", "ffn") if role == "decoder" else ("self", "ffn")
    return Plan(role, depth, other, kinds, 8, Call("layer"))


@pytest.mark.parametrize(
    ("role", "depth", "other", "alpha", "beta"),
    [
        ("decoder_only", 6, None, 1.8612, 0.3799),
        ("encoder_only", 12, None, 2.2134, 0.3195),
        ("decoder_only", 18, None, 2.4495, 0.2887),
        ("decoder_only", 1000, None, 6.6874, 0.1057),
        ("encoder", 6, 6, 1.4179, 0.4970),
        ("decoder", 6, 6, 2.0598, 0.3433),
        ("encoder", 18, 18, 1.9987, 0.3526),
        ("decoder", 18, 18, 2.7108, 0.2608),
        ("encoder", 100, 100, 3.4157, 0.2063),
        ("decoder", 100, 100, 4.1618, 0.1699),
        ("encoder", 12, 3, 0.81 * (12**4 * 3) ** (1 / 16), 0.87 * (12**4 * 3) ** (-1 / 16)),
    ],
)
def test_deepnorm_constants(role, depth, other, alpha, beta):
    wiring = make_wiring("deepnorm", plan(role, depth, other))
    assert wiring.alpha == pytest.approx(alpha, abs=5e-5)
    assert wiring.gain("value") == pytest.approx(beta, abs=5e-5)
    assert {wiring.gain(role) for role in ("query", "key", "embed")} == {1.0}


@pytest.mark.parametrize(
    ("role", "depth", "other", "gain"),
    [
        ("decoder_only", 6, None, 1.5764),
        ("encoder", 6, 6, 1.5473),
        ("decoder", 6, 6, 1.7001),
        ("decoder_only", 24, None, 1.9675),
        ("encoder", 24, 24, 2.3492),
        ("decoder", 24, 24, 2.0680),
    ],
)
def test_sub_ln_constants(role, depth, other, gain):
    wiring = make_wiring("sub_ln", plan(role, depth, other))
    for site in wiring.plan.sites[:3]:
        expected = 1.0 if site.kind == "cross" else pytest.approx(gain, abs=5e-5)
        assert wiring.gain("out", site) == expected
        assert wiring.gain("query", site) == 1.0


@pytest.mark.parametrize(
    ("depth", "encoder", "decoder"),
    [(6, 0.4281, 0.3689), (12, 0.3600, 0.3102), (18, 0.3253, 0.2803), (200, 0.1782, 0.1535)],
)
def test_t_fixup_constants(depth, encoder, decoder):
    wirings = (
        make_wiring("t_fixup", plan("encoder", depth, 3)),
        make_wiring("t_fixup", plan("decoder", depth, 3)),
    )
    assert [w.gain("value") for w in wirings] == pytest.approx([encoder, decoder], abs=5e-5)
    assert [w.gain("query") for w in wirings] == [1.0, 1.0]
    assert wirings[0].gain("embed") == pytest.approx((9 * depth) ** -0.25)


def test_fixup_counts_branches_of_both_stacks():
    for wiring in (
        make_wiring("fixup", plan("encoder", 6, 6)),
        make_wiring("fixup", plan("decoder", 6, 6)),
    ):
        assert wiring.num_branches == 30
        assert wiring.gain("query") == pytest.approx(0.5673, abs=5e-5)
        assert wiring.gain("ffn_in") == pytest.approx(0.1826, abs=5e-5)
        assert wiring.gain("out") == wiring.gain("ffn_out") == 0.0
    assert make_wiring("fixup", plan("encoder_only", 6)).num_branches == 12


def test_gpt2_init_counts_three_additions_per_decoder_layer():
    for role, other, additions in (("decoder_only", None, 24), ("decoder", 4, 36)):
        wiring = make_wiring("pre_ln(init=gpt2)", plan(role, 12, other))
        assert wiring.scheme == "gpt2"
        assert wiring.gain("ffn_out") == wiring.gain("out") == pytest.approx(additions**-0.5)
        assert wiring.gain("ffn_in") == 1.0
    assert make_wiring("pre_ln", plan("decoder_only", 12)).gain("out") == 1.0


def test_keel_alpha_counts_sublayers():
    assert make_wiring("keel", plan("decoder_only", 6)).alpha == 12
    assert make_wiring("keel", plan("decoder", 6, 2)).alpha == 18


def test_dlcl_can_start_as_a_sum():
    weight = make_wiring("dlcl(start=one)", plan("encoder_only", 3)).weight
    assert torch.equal(weight, torch.ones(4, 4).tril())


def test_hyper_can_scale_output_matrices():
    wiring = make_wiring("hyper(out_gain=2.0)", plan("encoder_only", 3))
    assert wiring.gain("out") == wiring.gain("ffn_out") == 2.0 and wiring.gain("value") == 1.0


@pytest.mark.parametrize(("start", "omega"), [("constant", 12**0.5), ("linear", 1.0)])
def test_admin_start_options(start, omega):
    wiring = make_wiring(f"admin(start={start})", plan("encoder_only", 6))
    torch.testing.assert_close(wiring.omega, torch.full((12, 8), omega))


def test_mix_ln_counts_layers_exactly():
    for share, depth, layers in ((0.29, 100, 29), (0.58, 50, 29), (0.25, 6, 1), (0.25, 3, 0)):
        wiring = make_wiring(f"mix_ln(post={share})", plan("encoder_only", depth))
        assert wiring.num_post_layers == layers


def test_init_weights_is_idempotent():
    for call in ("sandwich(start=0.5)", "res_post(start=0.5)"):
        wiring = make_wiring(call, plan("encoder_only", 2))
        wiring.reset_parameters()
        norms = wiring.outer_norms if "sandwich" in call else wiring.norms
        assert all((norm.weight == 0.5).all() for norm in norms)


@pytest.mark.parametrize("scheme", ["megatron", "unit"])
def test_schemes_by_width_use_the_width_of_the_stream(scheme):
    """Grouped keys have fewer outputs than inputs, a small vocabulary fewer rows than columns."""
    stack = Encoder(dim=256, depth=1, heads=8, kv_heads=1, ffn_dim=96)
    stack.init_weights(scheme=scheme, seed=0)
    table = torch.empty(64, 256)
    init.init_weight_(table, scheme=scheme, role="embed")
    expected = math.sqrt((2 / 5 if scheme == "megatron" else 1) / 256)
    for weight in (table, *(weight for role, weight in stack.weights() if role != "bias")):
        assert weight.std().item() == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(("count", "omega"), [(12, 2.017), (24, 2.601), (36, 3.041), (100, 4.570)])
def test_admin_log_start_needs_no_calibration(count, omega):
    wiring = make_wiring("admin(start=log)", plan("encoder_only", count // 2))
    assert wiring.omega.shape == (count, 8)
    torch.testing.assert_close(wiring.omega, torch.full((count, 8), omega), rtol=1e-3, atol=0)
    assert bool(wiring.calibrated)


def test_b2t_shrinks_all_matrices_by_its_own_depth():
    wiring = make_wiring("b2t", plan("decoder", 16, 4))
    assert wiring.gain("query") == wiring.gain("ffn_out") == 0.25
    assert make_wiring("b2t(rescale=False)", plan("decoder", 16, 4)).gain("query") == 1.0


@pytest.mark.parametrize(("depth", "start"), [(12, 0.1), (18, 0.1), (24, 1e-5), (36, 1e-6)])
def test_layer_scale_start_depends_on_depth(depth, start):
    gamma = make_wiring("layer_scale", plan("encoder_only", depth)).gamma
    torch.testing.assert_close(gamma, torch.full_like(gamma, start))


XAVIER = ("xavier_uniform", "xavier_normal")


@pytest.mark.parametrize("scheme", init.SCHEMES)
@pytest.mark.parametrize(
    "name", ["pre_ln", "deepnorm", "sub_ln", "t_fixup", "fixup", "hybrid_norm"]
)
def test_standard_deviation_of_initial_weights(name, scheme):
    """Measured on real matrices of 96 x 96 and 96 x 160, within 6 percent."""
    dim, wide = 96, 160
    stack = Decoder(
        dim=dim, depth=2, heads=4, ffn_dim=wide, wiring=name, other_depth=3, activation="reglu"
    )
    stack.init_weights(scheme=scheme, seed=0)
    expected = {
        "xavier_uniform": lambda rows, columns, ffn: math.sqrt(2 / (rows + columns)),
        "xavier_normal": lambda rows, columns, ffn: math.sqrt(2 / (rows + columns)),
        "gpt2": lambda rows, columns, ffn: 0.02,
        "small": lambda rows, columns, ffn: math.sqrt(
            2 / (rows + columns) if ffn else 2 / (5 * dim)
        ),
        "megatron": lambda rows, columns, ffn: math.sqrt(2 / (5 * dim)) * 0.9866,  # cut at 3 sigma
        "unit": lambda rows, columns, ffn: dim**-0.5,
        "torch": lambda rows, columns, ffn: 1 / math.sqrt(3 * columns),
    }[scheme]
    for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
        for role, weight in sublayer.roles():
            if role == "bias":
                assert not weight.any()
                continue
            std = expected(*weight.shape, role.startswith("ffn"))
            std *= stack.wiring.gain(role, site)
            assert weight.std().item() == pytest.approx(std, rel=0.06, abs=1e-12), (role, site)


def test_uniform_and_normal_differ_in_their_tails():
    weight = torch.empty(200, 200)
    init.init_weight_(weight, scheme="xavier_uniform", role="out")
    bound = math.sqrt(6 / 400)
    assert bound * 0.99 < weight.abs().max() <= bound
    init.init_weight_(weight, scheme="xavier_normal", role="out")
    assert weight.abs().max() > bound


def test_unknown_schemes_and_roles_are_rejected():
    stack = Encoder(dim=8, depth=1, heads=2)
    with pytest.raises(UserError, match="unknown scheme 'xavier'; did you mean 'xavier_"):
        stack.init_weights(scheme="xavier")
    with pytest.raises(UserError, match="unknown role 'fc1'"):
        init.init_weight_(torch.empty(2, 2), scheme="unit", role="fc1")


def test_seed_keeps_the_global_generator():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    stack = Stack([nn.Linear(4, 4), nn.Linear(4, 4)], dim=4)
    torch.manual_seed(0)
    stack.init_weights(seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_plain_modules_are_scaled_in_their_last_matrix():
    ffn = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    stack = Stack([nn.Linear(8, 8), ffn], dim=8)
    roles = [role for role, _ in stack.weights()]
    assert roles == ["out", "bias", "ffn_in", "ffn_out", "bias", "bias"]


def test_torch_attention_is_initialized_by_role():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    stack = Stack([Wrapped(), nn.Linear(8, 8)], dim=8, wiring="deepnorm(beta=0.001)")
    weights = dict(list(stack.weights())[:4])
    assert list(weights) == ["query", "key", "value", "out"]
    attention = stack.sublayers[0].attention
    assert weights["value"].data_ptr() == attention.in_proj_weight[16:].data_ptr()
    stack.init_weights(seed=0)
    query, _, value = stack.sublayers[0].attention.in_proj_weight.chunk(3)
    assert query.std() > 100 * value.std()
    stack(tokens(2, 3, 8))


def test_scheme_of_every_wiring_exists():
    for name in registry:
        assert make_wiring(name, plan("encoder_only", 2)).scheme in init.SCHEMES


class Conv(nn.Module):
    """Plain sub-layer whose weight is not a matrix."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x):
        return self.conv(x.mT).mT


def test_convolutions_are_initialized_like_matrices():
    stack = Stack([Conv(), nn.Linear(8, 8)], dim=8, wiring="fixup").init_weights(seed=0)
    x = tokens(2, 5, 8)
    torch.testing.assert_close(stack(x), x)


@pytest.mark.parametrize(
    "module",
    [nn.LSTM(8, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))],
    ids=["lstm", "weight_norm"],
)
def test_weights_of_unknown_roles_are_kept_with_a_warning(module):
    before = [parameter.clone() for parameter in module.parameters()]
    stack = Stack([module, nn.Linear(8, 8)], dim=8, wiring="fixup")
    with pytest.warns(WeightsNotInitializedWarning, match="roles are not known"):
        stack.init_weights(seed=0)
    for old, new in zip(before, module.parameters(), strict=True):
        assert torch.equal(old, new) or not new.any()  # biases start at zero
