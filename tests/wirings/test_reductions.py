"""Reductions: wirings at special parameter values, and with zero branches."""

import pytest
import torch
from torch import nn

from addnorm import Decoder, Encoder, Stack
from addnorm.wirings import registry
from addnorm.wirings.mhc import sinkhorn
from tests.helpers import PAIR, TRIPLE, Constant, ZeroBranch, gradients, perturb, tokens, toy_stack
from tests.wirings import reference

REDUCTIONS = [pair for card in registry.cards() for pair in card.reduces_to]


@pytest.mark.parametrize("layer", [PAIR, TRIPLE], ids=["encoder", "decoder"])
@pytest.mark.parametrize(("call", "equal"), REDUCTIONS)
def test_reductions_listed_on_cards_hold_at_initialization(call, equal, layer):
    """Compare both sides at initialization, with equal sub-layers and a negligible eps."""
    exact = {"layer": layer, "norm": "layer(eps=1e-14)", "dtype": torch.float64}
    one, other = (toy_stack(name, **exact).eval() for name in (call, equal))
    x = tokens(dtype=torch.float64).requires_grad_()
    y, z = one(x), other(x)
    tolerance = 1e-4 if "mhc" in call else 1e-8  # Sinkhorn has an eps of its own
    torch.testing.assert_close(y, z, rtol=tolerance, atol=tolerance)
    inputs = [x, *one.sublayers.parameters()]
    others = [x, *other.sublayers.parameters()]
    for a, b in zip(gradients(y, inputs), gradients(z, others), strict=True):
        torch.testing.assert_close(a, b, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize(
    "names",
    [
        {"deepnorm(alpha=1.0, beta=1.0)", "mix_ln(post=0.0)", "layer_scale(start=1.0)", "gpas"},
        {"hyper", "mhc(gate=0.0)", "denseformer", "attn_res", "u_skips(start=0.0)", "admin"},
    ],
)
def test_reduction_table_is_complete(names):
    assert names <= {call for call, _ in REDUCTIONS}


def norm(x):
    return nn.functional.layer_norm(x, x.shape[-1:])


def b2t_zero_branches(x):
    """Two layers, each normalizing the sum of its input and its normalized input."""
    for _ in range(2):
        x = norm(norm(x) + x)
    return x


def dlcl_zero_branches(x):
    first = x  # a single source
    second = (x + norm(first)) / 2
    return norm((x + norm(first) + norm(second)) / 3)


# Output of two layers at initialization when every branch returns zero.
ZERO_BRANCH_OUTPUTS = {
    "post_ln": norm,
    "pre_ln": norm,
    "res_post": norm,
    "false_pre_ln": norm,
    "none": lambda x: x,
    "rezero": lambda x: x,
    "skip_init": lambda x: x,
    "fixup": lambda x: x,
    "t_fixup": lambda x: x,
    "admin": norm,
    "dlcl": dlcl_zero_branches,
    "b2t": b2t_zero_branches,
    "deepnorm": norm,
    "sandwich": norm,
    "sub_ln": norm,
    "normformer": norm,
    "layer_scale": norm,
    "resi_dual": lambda x: 2 * norm(x),
    "mix_ln": norm,
    "ln_scaling": norm,
    "hybrid_norm": norm,
    "gpas": norm,
    "keel": norm,
    "siamese": norm,
    "parallel": norm,
    "denseformer": norm,
    "hyper": norm,
    "mhc": norm,
    "attn_res": norm,
    "ngpt": lambda x: x / x.norm(dim=-1, keepdim=True),
    "u_skips": norm,
    "scaled": norm,
    "res_scale": norm,
    "deep_delta": norm,
    "mudd": norm,
    "laurel": norm,
    "nanochat": norm,
    "drop_path": norm,
    "layer_drop": norm,
}


def test_zero_branches_cover_every_wiring_but_gated():
    """GTrXL's gate changes the stream even if the branch is zero."""
    assert set(registry) - set(ZERO_BRANCH_OUTPUTS) == {"gated"}


@pytest.mark.parametrize("name", ZERO_BRANCH_OUTPUTS)
def test_zero_branches_give_the_stated_output(name):
    stack = Stack([ZeroBranch() for _ in range(4)], dim=10, wiring=name).eval()
    x = 3 * tokens() + 1
    torch.testing.assert_close(stack(x), ZERO_BRANCH_OUTPUTS[name](x), rtol=1e-3, atol=1e-4)


def test_false_pre_ln_is_detected_by_zero_branches():
    x = 5 * tokens()
    right = Stack([ZeroBranch(), ZeroBranch()], dim=10, wiring="pre_ln")
    wrong = Stack([ZeroBranch(), ZeroBranch()], dim=10, wiring="false_pre_ln")
    right.wiring.final_norm = None
    torch.testing.assert_close(right(x), x)
    lengths = wrong(x).square().sum(-1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 10.0), rtol=1e-3, atol=0)


def test_false_pre_ln_equals_shifted_post_ln():
    false, post = toy_stack("false_pre_ln"), toy_stack("post_ln")
    perturb(false.wiring)
    for k in range(len(false.sublayers) - 1):
        post.wiring.norms[k].load_state_dict(false.wiring.norms[k + 1].state_dict())
    post.wiring.norms[-1] = nn.Identity()
    x = tokens()
    torch.testing.assert_close(false(x), post(false.wiring.norms[0](x)))


def test_b2t_skip_starts_at_the_layer_not_at_the_stack():
    stack = Stack([ZeroBranch() for _ in range(4)], dim=10, wiring="b2t")
    x = tokens()
    layer_one = norm(norm(x) + x)
    torch.testing.assert_close(stack(x), norm(norm(layer_one) + layer_one))


@pytest.mark.parametrize(("name", "reaches"), [("b2t", True), ("post_ln", False)])
def test_gradient_path_around_the_inner_norm(name, reaches):
    stack = toy_stack(name, depth=1)
    stack.wiring.norms[0].register_forward_hook(lambda _module, _inputs, output: output.detach())
    x = tokens().requires_grad_()
    (grad,) = gradients(stack(x), [x]) if reaches else (None,)
    if reaches:
        assert grad.abs().sum() > 0
    else:
        weights = list(stack.sublayers[1].parameters())
        assert torch.autograd.grad(stack(x).sum(), [x, *weights], allow_unused=True)[0] is None


def test_constant_branches_add_up_in_pre_ln_variants():
    branches = [Constant(10, seed=k) for k in range(4)]
    x = tokens()
    total = x + sum(branch.value for branch in branches)
    for name in ("pre_ln", "hyper", "denseformer", "parallel", "u_skips(start=0.0)"):
        torch.testing.assert_close(
            Stack(branches, dim=10, wiring=name)(x), norm(total), rtol=1e-3, atol=1e-4
        )
    dual = Stack(branches, dim=10, wiring="resi_dual")
    post = Stack(branches, dim=10, wiring="post_ln")
    torch.testing.assert_close(dual(x), post(x) + norm(total))


def test_resi_dual_without_its_second_stream_is_post_ln():
    dual, post = toy_stack("resi_dual"), toy_stack("post_ln")
    dual.wiring.final_norm.set_gain(0.0)
    torch.testing.assert_close(dual(tokens()), post(tokens()))


def test_keel_without_its_inner_norm_at_alpha_one_is_post_ln():
    keel, post = toy_stack("keel(alpha=1.0)"), toy_stack("post_ln")
    for k in range(len(keel.sublayers)):
        keel.wiring.inner_norms[k] = nn.Identity()
    torch.testing.assert_close(keel(tokens()), post(tokens()))


def test_sandwich_without_one_norm_is_pre_ln_or_res_post():
    x = tokens()
    for family, equal in (("outer_norms", "pre_ln"), ("norms", "res_post")):
        sandwich = toy_stack("sandwich")
        for k in range(len(sandwich.sublayers)):
            getattr(sandwich.wiring, family)[k] = nn.Identity()
        torch.testing.assert_close(sandwich(x), toy_stack(equal)(x))


@pytest.mark.parametrize("name", ["sandwich", "res_post"])
def test_scale_of_output_matrices_does_not_matter_before_a_norm(name):
    torch.manual_seed(0)
    stack = Stack([nn.Linear(10, 10) for _ in range(4)], dim=10, wiring=name)
    x = tokens()
    before = stack(x)
    with torch.no_grad():
        for parameter in stack.sublayers.parameters():
            parameter.mul_(7.0)
    torch.testing.assert_close(stack(x), before, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("start", ["res_post(start=0.0)", "sandwich(start=0.0)"])
def test_zero_gains_make_every_layer_the_identity(start):
    stack = toy_stack(start)
    stack.wiring.final_norm = None
    torch.testing.assert_close(stack(tokens()), tokens())


def test_ln_scaling_of_one_layer_is_pre_ln():
    x = tokens()
    torch.testing.assert_close(toy_stack("ln_scaling", depth=1)(x), toy_stack("pre_ln", depth=1)(x))
    assert not torch.allclose(toy_stack("ln_scaling", depth=2)(x), toy_stack("pre_ln", depth=2)(x))


def test_ln_scaling_is_pre_ln_with_smaller_gains():
    x, scaled, plain = tokens(), toy_stack("ln_scaling"), toy_stack("pre_ln")
    for site in plain.plan.sites:
        plain.wiring.norms[site.index].set_gain((site.layer + 1) ** -0.5)
    torch.testing.assert_close(scaled(x), plain(x))


def test_dlcl_with_a_unit_diagonal_is_post_ln_with_a_second_norm_between_layers():
    dlcl = toy_stack("dlcl(place=post)")
    with torch.no_grad():
        dlcl.wiring.weight.copy_(torch.eye(5))
    torch.testing.assert_close(dlcl(tokens()), toy_stack("post_ln")(tokens()), rtol=1e-3, atol=1e-4)


def test_dlcl_rows_sum_to_one_and_ignore_the_upper_triangle():
    stack = toy_stack("dlcl")
    weight = stack.wiring.weight
    torch.testing.assert_close(weight.sum(1), torch.ones(5))
    (grad,) = gradients(stack(tokens()), [weight])
    assert torch.equal(grad, grad.tril()) and (grad.tril().abs() > 0).sum() == 15


def test_gpas_scales_the_forward_but_not_the_gradient():
    stack = Stack([ZeroBranch(), ZeroBranch()], dim=10, wiring="gpas(per=site)")
    stack.wiring.inner.final_norm = None
    with torch.no_grad():
        stack.wiring.g.copy_(torch.tensor([0.7, -0.4]))
    x = tokens().requires_grad_()
    y = stack(x)
    factor = (1 - nn.functional.silu(stack.wiring.g)).prod()
    torch.testing.assert_close(y, x * factor)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], torch.ones_like(x))


def test_rezero_starts_as_the_identity_and_only_alpha_has_a_gradient():
    stack = toy_stack("rezero")
    x = tokens()
    y = stack(x)
    assert torch.equal(y, x)
    weights = list(stack.sublayers.parameters())
    assert all(not grad.any() for grad in gradients(y, weights))
    assert gradients(y, [stack.wiring.alpha])[0].abs().min() > 0


def test_fixup_starts_as_the_identity_and_only_last_matrices_have_a_gradient():
    torch.manual_seed(0)
    stack = Encoder(dim=12, depth=3, heads=3, wiring="fixup")
    x = tokens(2, 5, 12)
    y = stack(x)
    torch.testing.assert_close(y, x)
    moving = {
        key
        for key, parameter in stack.sublayers.named_parameters()
        if gradients(y, [parameter])[0].abs().sum() > 0
    }
    assert {key.split(".")[1] for key in moving} == {"out_proj", "down_proj"}


def test_ngpt_stream_stays_on_the_unit_sphere():
    torch.manual_seed(0)
    stack = perturb(Encoder(dim=12, depth=3, heads=3, wiring="ngpt"))
    with stack.taps.record() as tape:
        stack(tokens(2, 5, 12))
    for stream in tape["stream"]:
        torch.testing.assert_close(stream.norm(dim=-1), torch.ones(2, 5))
    stack.after_step()
    for role, weight in stack.weights():
        if role != "bias":
            lengths = weight.norm(dim=0 if role in ("out", "ffn_out") else 1)
            torch.testing.assert_close(lengths, torch.ones_like(lengths), msg=role)


def test_ngpt_is_the_identity_at_alpha_zero():
    stack = toy_stack("ngpt")
    nn.init.zeros_(stack.wiring.a)
    torch.testing.assert_close(stack(tokens()), nn.functional.normalize(tokens(), dim=-1))


def test_large_bias_makes_the_gate_the_identity():
    stack = toy_stack("gated(bias=40.0)")
    stack.wiring.final_norm = None
    torch.testing.assert_close(stack(tokens()), tokens())


def test_hyper_streams_differ_after_one_step():
    stack = toy_stack("hyper")
    optimizer = torch.optim.SGD(stack.parameters(), lr=0.1)
    loss = (stack(tokens()) * tokens(seed=9)).sum()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        state = stack.wiring.open(tokens())
        for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
            state = stack.wiring.step(state, site, sublayer)
    first, second = state[0][..., 0, :], state[0][..., 1, :]
    assert not torch.allclose(first, second, atol=1e-4)


@pytest.mark.parametrize(("spread", "error"), [(0.1, 1e-4), (1.0, 2e-3), (3.0, 8e-2)])
def test_sinkhorn_is_doubly_stochastic(spread, error):
    logits = spread * tokens(2000, 4, 4)
    matrix = sinkhorn(logits, 20)
    torch.testing.assert_close(matrix.sum(-2), torch.ones(2000, 4), rtol=0, atol=1e-5)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(2000, 4), rtol=0, atol=error)
    assert (matrix > 0).all() and torch.linalg.matrix_norm(matrix, 2).max() < 1.03


def test_mhc_one_hot_keeps_streams_nearly_apart():
    from addnorm.core import Plan
    from addnorm.wirings import make_wiring

    plan = Plan("encoder_only", 1, None, ("self", "ffn"), 8, toy_stack("none").plan.norm)
    gates = make_wiring("mhc(start=one_hot)", plan).mixers[0]
    mixing = gates.b[8:].unflatten(0, (4, 4))
    diagonal = sinkhorn(mixing, 20).diagonal()
    torch.testing.assert_close(diagonal, torch.full((4,), 0.99899), rtol=0, atol=1e-5)


def test_attention_residual_weights_sum_to_one_over_sources():
    """With equal sources, a softmax over sources, and over no other axis, returns the source."""
    stack = toy_stack("attn_res(form=full)")
    perturb(stack.wiring)
    x = tokens()
    torch.testing.assert_close(stack.wiring._mix_sources((x, x, x), 2), x)


def test_attention_residual_in_blocks_of_one_sublayer_is_the_full_form():
    layer = {"kinds": ("mixer",), "role": "encoder_only", "other_depth": None}
    block = toy_stack("attn_res(block=1)", layer=layer, depth=6)
    full = toy_stack("attn_res(form=full)", layer=layer, depth=6)
    perturb(block.wiring), perturb(full.wiring)
    torch.testing.assert_close(block(tokens()), full(tokens()))


def test_denseformer_counts_its_scalars():
    stack = toy_stack("denseformer", depth=6)
    assert sum(weights.numel() for weights in stack.wiring.a.values()) == 6 * 9 // 2


def test_mix_ln_splits_by_layers():
    stack = toy_stack("mix_ln(post=0.5)", depth=5)
    assert stack.wiring.num_post_layers == 2


def test_references_distinguish_wirings():
    """No two of these references agree on the same weights."""
    x = tokens()
    stack = toy_stack("sandwich")
    perturb(stack.wiring)
    f, w = list(stack.sublayers), stack.wiring
    names = ("post_ln", "pre_ln", "res_post", "false_pre_ln", "b2t", "sandwich", "ln_scaling")
    results = [getattr(reference, name)(x, f, w, 2) for name in names]
    for i, one in enumerate(results):
        for other in results[i + 1 :]:
            assert not torch.allclose(one, other, atol=1e-3)


def test_number_of_norms():
    def count(stack):
        return sum(1 for module in stack.wiring.modules() if type(module).__name__ == "LayerNorm")

    assert count(Encoder(dim=12, depth=4, heads=3, wiring="post_ln")) == 2 * 4
    assert count(Encoder(dim=12, depth=4, heads=3, wiring="pre_ln")) == 2 * 4 + 1
    pair = {"dim": 12, "depth": 4, "heads": 3, "other_depth": 2}
    assert count(Decoder(wiring="post_ln", **pair)) == 3 * 4
    assert count(Decoder(wiring="pre_ln", **pair)) == 3 * 4 + 1
    assert count(Decoder(wiring="rezero", **pair)) == 0
    # sub_ln has no norm inside cross-attention.
    assert count(Decoder(wiring="sub_ln", **pair)) == 3 * 4 + 2 * 4 + 1
    assert count(Decoder(wiring="siamese", **pair)) == 3 * 3 * 4 + 3
