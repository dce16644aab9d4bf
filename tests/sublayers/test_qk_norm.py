"""Query-key norms against textbook formulas, and their properties."""

import math

import pytest
import torch
import torch.nn.functional as F

from addnorm.core.errors import UserError
from addnorm.core.plan import Plugs
from addnorm.sublayers import CrossAttention, SelfAttention
from addnorm.sublayers.qk_norm import registry
from tests.helpers import gradients, perturb, tokens
from tests.sublayers import reference

FORMS = [name for name in registry if name != "none"]
OPTIONS = {"dim": 12, "heads": 4, "kv_heads": 2, "head_dim": 3}


def make_attention(form, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return perturb(SelfAttention(**OPTIONS | options, qk_norm=form)).double()


def rms(x, gain, eps=1e-6):
    return gain * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def unit(x):
    return x / x.square().sum(-1, keepdim=True).sqrt()


def textbook(module, form, q, k):
    """Return normalized queries and keys, (B, L, heads, K), and the scale of their product."""
    norm, default_scale = module.qk_norm, 1 / math.sqrt(module.head_dim)
    if form == "l2":
        return norm.g * unit(q), unit(k), 1.0
    if form == "cosine":
        factor = norm.s.exp().clamp(max=100).reshape(1, 1, -1, 1)
        return factor * unit(q), unit(k), 1.0
    gains = norm.query_norm.weight, norm.key_norm.weight
    if form == "rms":
        normalized = (rms(y.flatten(2), gain) for y, gain in zip((q, k), gains, strict=True))
        q, k = (reference.split(y, heads) for y, heads in zip(normalized, (4, 2), strict=True))
        return q, k, default_scale
    if form == "rms_head":
        return rms(q, gains[0]), rms(k, gains[1]), default_scale
    assert form == "layer_head"
    centered = (y - y.mean(-1, keepdim=True) for y in (q, k))
    q, k = (rms(y, gain) for y, gain in zip(centered, gains, strict=True))
    return q, k, default_scale


@pytest.mark.parametrize("form", FORMS)
def test_matches_reference(form):
    module = make_attention(form)
    x = tokens(3, 7, 12, dtype=torch.float64).requires_grad_()
    q, k, v = (
        reference.split(linear(x), heads)
        for linear, heads in ((module.q_proj, 4), (module.k_proj, 2), (module.v_proj, 2))
    )
    q, k, scale = textbook(module, form, q, k)
    heads, _ = reference.attend(q, k, v, scale, torch.tensor(True), torch.zeros(()))
    ours, expected = module(x), module.out_proj(heads.flatten(2))
    torch.testing.assert_close(ours, expected)
    inputs = [x, *module.parameters()]
    for a, b in zip(gradients(ours, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(a, b)


def logits(module, x):
    q, (k, _) = module.project_queries(x, Plugs()), module.project_keys_values(x, Plugs())
    scale = module.qk_norm.logit_scale or module.head_dim**-0.5
    return scale * q @ k.repeat_interleave(2, 1).mT


@pytest.mark.parametrize("form", ["l2", "cosine"])
def test_logits_are_bounded_by_learned_factor(form):
    module, x = make_attention(form), 100 * tokens(3, 7, 12, dtype=torch.float64)
    bound = module.qk_norm.g if form == "l2" else module.qk_norm.s.exp()
    assert (logits(module, x).abs() <= bound + 1e-9).all()


def test_initial_factors_match_papers():
    for call, published in (("l2", 12.44), ("l2(length=72)", 12.32)):
        g = SelfAttention(12, 4, qk_norm=call).qk_norm.g
        assert g.item() == pytest.approx(published, abs=0.005)
    s = SelfAttention(12, 4, qk_norm="cosine").qk_norm.s
    torch.testing.assert_close(s.exp(), torch.full((4, 1, 1), 10.0))


def test_cosine_factor_is_clamped_at_100_and_keys_have_no_bias():
    module = make_attention("cosine")
    with torch.no_grad():
        module.qk_norm.s.fill_(math.log(1000))
    x = tokens(3, 7, 12, dtype=torch.float64)
    assert logits(module, x).abs().max() <= 100 + 1e-9
    assert module.k_proj.bias is None
    assert module.q_proj.bias is not None


@pytest.mark.parametrize("form", FORMS)
def test_output_is_invariant_to_scale_of_query_and_key_matrices(form):
    """Exact for the two forms without eps."""
    module, x = make_attention(form, bias=False), tokens(3, 7, 12, dtype=torch.float64)
    before = module(x)
    with torch.no_grad():
        module.q_proj.weight.mul_(3)
        module.k_proj.weight.mul_(7)
    tolerance = 1e-12 if form in ("l2", "cosine") else 1e-4
    torch.testing.assert_close(module(x), before, rtol=tolerance, atol=tolerance)


def test_rms_over_all_heads_differs_from_rms_per_head():
    """Scaling one head changes the output only if the norm spans all heads."""
    joint, per_head = make_attention("rms", bias=False), make_attention("rms_head", bias=False)
    own_norm = per_head.qk_norm.state_dict(prefix="qk_norm.")
    per_head.load_state_dict(joint.state_dict() | own_norm)
    x = tokens(3, 7, 12, dtype=torch.float64)

    def shift(module):
        before = module(x)
        with torch.no_grad():
            module.q_proj.weight[:3].mul_(10)
        return (module(x) - before).abs().max()

    assert shift(per_head) < 1e-3 < 1e-2 < shift(joint)


@pytest.mark.parametrize("form", FORMS)
def test_zero_token_gives_bounded_gradients(form):
    module, x = make_attention(form, bias=False), tokens(2, 5, 12, dtype=torch.float64)
    x[:, 0] = 0
    x.requires_grad_()
    y = module(x)
    for tensor in (y, *gradients(y, [x, *module.parameters()])):
        assert tensor.isfinite().all()
        assert tensor.abs().max() < 1e8


@pytest.mark.parametrize("form", FORMS)
def test_reset_restores_initial_values(form):
    fresh, module = SelfAttention(**OPTIONS, qk_norm=form), make_attention(form).float()
    module.reset_parameters()
    for name, value in fresh.qk_norm.state_dict().items():
        assert torch.equal(module.qk_norm.state_dict()[name], value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [SelfAttention, CrossAttention])
def test_query_key_norm_conflicts_with_norm_of_wiring(form, kind):
    module = kind(**OPTIONS, qk_norm=form)
    assert module.find_plug_conflict(Plugs()) is None
    assert module.find_plug_conflict(Plugs(value=F.relu, heads=F.relu, inner=F.relu)) is None
    for name in ("query", "key", "match"):
        assert f"qk_norm='{form}' and the wiring brings its own" in module.find_plug_conflict(
            Plugs(**{name: F.relu})
        )
    scaled = module.find_plug_conflict(Plugs(logit_scale=1.0))
    assert (scaled is not None) == (form in ("l2", "cosine"))


def test_attention_without_norm_accepts_every_plug():
    plugs = Plugs(query=F.relu, key=F.relu, match=lambda q, k: (q, k), logit_scale=1.0)
    assert SelfAttention(12, 4).find_plug_conflict(plugs) is None


@pytest.mark.parametrize("card", registry.cards(), ids=lambda card: card.name)
def test_cards_are_complete(card):
    assert card.title and card.formula and card.summary and card.year and card.arxiv


def test_l2_with_length_1_raises():
    with pytest.raises(
        UserError, match=r"'length' .* expected a number greater than or equal to 2, got 1"
    ):
        SelfAttention(12, 4, qk_norm="l2(length=1)")
