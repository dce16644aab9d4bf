"""Persistent memory: learned keys and values without tokens."""

import pytest
import torch
import torch.nn.functional as F

from addnorm.core.plan import Plugs
from addnorm.sublayers import KVCache, SelfAttention
from tests.helpers import gradients, perturb, tokens
from tests.sublayers import reference


def make_attention(persistent=3, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return perturb(SelfAttention(12, 4, persistent=persistent, **options)).double()


def x64(*shape):
    return tokens(*shape, dtype=torch.float64)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_matches_reference(kv_heads, causal):
    module, x = make_attention(kv_heads=kv_heads, causal=causal), x64(2, 5, 12).requires_grad_()
    q, k, v = (
        reference.split(linear(x), heads)
        for linear, heads in (
            (module.q_proj, 4),
            (module.k_proj, kv_heads),
            (module.v_proj, kv_heads),
        )
    )
    keys = module.persistent_keys.transpose(0, 1) * 3**0.5  # head_dim
    values = module.persistent_values.transpose(0, 1) * 3**0.5  # slots
    k = torch.cat((keys.expand(2, -1, -1, -1), k), 1)
    v = torch.cat((values.expand(2, -1, -1, -1), v), 1)
    rule = reference.causal_mask(5) if causal else torch.ones(5, 5, dtype=torch.bool)
    allowed = torch.cat((torch.ones(5, 3, dtype=torch.bool), rule), 1)
    heads, probabilities = reference.attend(q, k, v, 3**-0.5, allowed, torch.zeros(()))
    expected = module.out_proj(heads.flatten(2))
    ours = module(x)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(module(x, weights=True)[1], probabilities)
    inputs = [x, *module.parameters()]
    for a, b in zip(gradients(ours, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_reach_all_slots():
    module = make_attention()
    slots = [module.persistent_keys, module.persistent_values]
    assert all((grad != 0).all() for grad in gradients(module(x64(2, 5, 12)), slots))


def test_zero_slots_equal_plain_attention():
    module = make_attention(persistent=0)
    assert module.persistent_keys is None
    assert not any("persistent" in name for name in module.state_dict())
    x = x64(2, 5, 12)
    torch.testing.assert_close(module(x), reference.attention(module, x, x))


def test_slots_keep_ratios_of_token_probabilities():
    module, plain, x = make_attention(), make_attention(persistent=0), x64(2, 5, 12)
    plain.load_state_dict(
        {name: value for name, value in module.state_dict().items() if "persistent" not in name}
    )
    _, probabilities = module(x, weights=True)
    token_share = probabilities[..., 3:].sum(-1, keepdim=True)
    assert (token_share < 1).all()
    torch.testing.assert_close(probabilities[..., 3:] / token_share, plain(x, weights=True)[1])
    torch.testing.assert_close(probabilities.sum(-1), torch.ones_like(probabilities[..., 0]))


def test_slot_order_does_not_matter():
    module, x = make_attention(), x64(2, 5, 12)
    before = module(x)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        module.persistent_keys.copy_(module.persistent_keys[:, order])
        module.persistent_values.copy_(module.persistent_values[:, order])
    torch.testing.assert_close(module(x), before)


def test_slots_ignore_mask_and_bias():
    """A sequence of padding attends to the slots, and the position bias does not apply to them."""
    module, x = make_attention(causal=True), x64(2, 5, 12)
    no_tokens = torch.zeros(2, 5, dtype=torch.bool)
    _, probabilities = module(x, mask=no_tokens, weights=True)
    assert (probabilities[..., 3:] == 0).all()
    penalty = -1e4 * torch.ones(4, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(module(x, bias=penalty, weights=True)[1], probabilities)


def test_initial_slots_have_unit_variance_after_scaling():
    module = SelfAttention(64, 2, persistent=256)
    torch.manual_seed(0)
    module.reset_parameters()
    assert module.persistent_keys.std().item() == pytest.approx(32**-0.5, rel=0.05)
    assert module.persistent_values.std().item() == pytest.approx(256**-0.5, rel=0.05)


def test_slots_are_not_cached():
    module, x, cache = make_attention(causal=True, kv_heads=2), x64(2, 5, 12), KVCache(1)
    steps = [module(x[:, :2], cache=cache[0]), module(x[:, 2:], cache=cache[0])]
    torch.testing.assert_close(torch.cat(steps, 1), module(x))
    assert cache.length == 5


def test_query_key_norm_of_wiring_is_a_conflict():
    assert "3 persistent keys" in make_attention().find_plug_conflict(Plugs(key=F.relu))
    assert make_attention().find_plug_conflict(Plugs(inner=F.relu)) is None
