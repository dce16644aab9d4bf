"""Query-key norms: each form against a twin, and what it promises."""

import math

import pytest
import torch
import torch.nn.functional as F

from addnorm.core.errors import UserError
from addnorm.core.plan import Plugs
from addnorm.sublayers import CrossAttention, SelfAttention
from addnorm.sublayers.qk_norm import registry
from tests.helpers import gradients, shaken, tokens
from tests.sublayers import reference

FORMS = [name for name in registry if name != "none"]
OPTIONS = {"dim": 12, "heads": 4, "kv_heads": 2, "head_dim": 3}


def make(form, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return shaken(SelfAttention(**OPTIONS | options, qk_norm=form)).double()


def rms(x, gain, eps=1e-6):
    return gain * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def unit(x):
    return x / x.square().sum(-1, keepdim=True).sqrt()


def textbook(module, form, q, k):
    """Normalized queries and keys, (B, L, heads, K), and the scale of their product."""
    norm, own = module.qk_norm, 1 / math.sqrt(module.head_dim)
    if form == "l2":
        return norm.g * unit(q), unit(k), 1.0
    if form == "cosine":
        stretch = norm.s.exp().clamp(max=100).reshape(1, 1, -1, 1)
        return stretch * unit(q), unit(k), 1.0
    gains = norm.query_norm.weight, norm.key_norm.weight
    if form == "rms":
        whole = (rms(y.flatten(2), gain) for y, gain in zip((q, k), gains, strict=True))
        q, k = (reference.split(y, heads) for y, heads in zip(whole, (4, 2), strict=True))
        return q, k, own
    if form == "rms_head":
        return rms(q, gains[0]), rms(k, gains[1]), own
    assert form == "layer_head"
    centred = (y - y.mean(-1, keepdim=True) for y in (q, k))
    q, k = (rms(y, gain) for y, gain in zip(centred, gains, strict=True))
    return q, k, own


@pytest.mark.parametrize("form", FORMS)
def test_equals_its_twin(form):
    module = make(form)
    x = tokens(3, 7, 12, dtype=torch.float64).requires_grad_()
    q, k, v = (
        reference.split(linear(x), heads)
        for linear, heads in ((module.q_proj, 4), (module.k_proj, 2), (module.v_proj, 2))
    )
    q, k, scale = textbook(module, form, q, k)
    heads, _ = reference.attend(q, k, v, scale, torch.tensor(True), torch.zeros(()))
    ours, twin = module(x), module.out_proj(heads.flatten(2))
    torch.testing.assert_close(ours, twin)
    inputs = [x, *module.parameters()]
    for a, b in zip(gradients(ours, inputs), gradients(twin, inputs), strict=True):
        torch.testing.assert_close(a, b)


def logits(module, x):
    q, (k, _) = module.project_queries(x, Plugs()), module.project_keys_values(x, Plugs())
    scale = module.qk_norm.logit_scale or module.head_dim**-0.5
    return scale * q @ k.repeat_interleave(2, 1).mT


@pytest.mark.parametrize("form", ["l2", "cosine"])
def test_no_logit_exceeds_the_learned_factor(form):
    module, x = make(form), 100 * tokens(3, 7, 12, dtype=torch.float64)
    bound = module.qk_norm.g if form == "l2" else module.qk_norm.s.exp()
    assert (logits(module, x).abs() <= bound + 1e-9).all()


def test_the_factors_start_as_published():
    for call, published in (("l2", 12.44), ("l2(length=72)", 12.32)):
        g = SelfAttention(12, 4, qk_norm=call).qk_norm.g
        assert g.item() == pytest.approx(published, abs=0.005)
    s = SelfAttention(12, 4, qk_norm="cosine").qk_norm.s
    torch.testing.assert_close(s.exp(), torch.full((4, 1, 1), 10.0))


def test_cosine_is_clamped_at_a_hundred_and_has_no_key_bias():
    module = make("cosine")
    with torch.no_grad():
        module.qk_norm.s.fill_(math.log(1000))
    x = tokens(3, 7, 12, dtype=torch.float64)
    assert logits(module, x).abs().max() <= 100 + 1e-9
    assert module.k_proj.bias is None
    assert module.q_proj.bias is not None


@pytest.mark.parametrize("form", FORMS)
def test_the_size_of_query_and_key_matrices_does_not_matter(form):
    """Up to eps, which the two forms without one do not have."""
    module, x = make(form, bias=False), tokens(3, 7, 12, dtype=torch.float64)
    before = module(x)
    with torch.no_grad():
        module.q_proj.weight.mul_(3)
        module.k_proj.weight.mul_(7)
    tolerance = 1e-12 if form in ("l2", "cosine") else 1e-4
    torch.testing.assert_close(module(x), before, rtol=tolerance, atol=tolerance)


def test_rms_over_all_heads_and_in_each_head_are_different_functions():
    """A loud head stays loud beside the others in the first, and is quieted in the second."""
    whole, each = make("rms", bias=False), make("rms_head", bias=False)
    each.load_state_dict(whole.state_dict() | each.qk_norm.state_dict(prefix="qk_norm."))
    x = tokens(3, 7, 12, dtype=torch.float64)

    def shift(module):
        before = module(x)
        with torch.no_grad():
            module.q_proj.weight[:3].mul_(10)
        return (module(x) - before).abs().max()

    assert shift(each) < 1e-3 < 1e-2 < shift(whole)


@pytest.mark.parametrize("form", FORMS)
def test_a_zero_token_among_others_gives_bounded_gradients(form):
    module, x = make(form, bias=False), tokens(2, 5, 12, dtype=torch.float64)
    x[:, 0] = 0
    x.requires_grad_()
    y = module(x)
    for found in (y, *gradients(y, [x, *module.parameters()])):
        assert found.isfinite().all()
        assert found.abs().max() < 1e8


@pytest.mark.parametrize("form", FORMS)
def test_reset_brings_the_start_back(form):
    fresh, module = SelfAttention(**OPTIONS, qk_norm=form), make(form).float()
    module.reset_parameters()
    for name, value in fresh.qk_norm.state_dict().items():
        assert torch.equal(module.qk_norm.state_dict()[name], value)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", [SelfAttention, CrossAttention])
def test_an_own_norm_refuses_that_of_a_wiring(form, kind):
    module = kind(**OPTIONS, qk_norm=form)
    assert module.find_plug_conflict(Plugs()) is None
    assert module.find_plug_conflict(Plugs(value=F.relu, heads=F.relu, inner=F.relu)) is None
    for name in ("query", "key", "match"):
        assert f"qk_norm='{form}' and the wiring brings its own" in module.find_plug_conflict(
            Plugs(**{name: F.relu})
        )
    scaled = module.find_plug_conflict(Plugs(logit_scale=1.0))
    assert (scaled is not None) == (form in ("l2", "cosine"))


def test_attention_without_a_norm_takes_every_plug():
    plugs = Plugs(query=F.relu, key=F.relu, match=lambda q, k: (q, k), logit_scale=1.0)
    assert SelfAttention(12, 4).find_plug_conflict(plugs) is None


@pytest.mark.parametrize("card", registry.cards(), ids=lambda card: card.name)
def test_cards_are_complete(card):
    assert card.title and card.formula and card.summary and card.year and card.arxiv


def test_l2_wants_a_length_whose_logarithm_exists():
    with pytest.raises(UserError, match=r"'length' .* cannot be 1"):
        SelfAttention(12, 4, qk_norm="l2(length=1)")
