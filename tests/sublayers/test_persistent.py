"""Persistent memory: keys and values that belong to no token."""

import pytest
import torch
import torch.nn.functional as F

from addnorm.core.plan import Plugs
from addnorm.sublayers import KVCache, SelfAttention
from tests.helpers import gradients, shaken, tokens
from tests.sublayers import reference


def make(persistent=3, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return shaken(SelfAttention(12, 4, persistent=persistent, **options)).double()


def x64(*shape):
    return tokens(*shape, dtype=torch.float64)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_its_twin(kv_heads, causal):
    module, x = make(kv_heads=kv_heads, causal=causal), x64(2, 5, 12).requires_grad_()
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
    rule = reference.later_hidden(5) if causal else torch.ones(5, 5, dtype=torch.bool)
    allowed = torch.cat((torch.ones(5, 3, dtype=torch.bool), rule), 1)
    heads, probabilities = reference.attend(q, k, v, 3**-0.5, allowed, torch.zeros(()))
    twin = module.out_proj(heads.flatten(2))
    ours = module(x)
    torch.testing.assert_close(ours, twin)
    torch.testing.assert_close(module(x, weights=True)[1], probabilities)
    inputs = [x, *module.parameters()]
    for a, b in zip(gradients(ours, inputs), gradients(twin, inputs), strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_reach_the_slots():
    module = make()
    slots = [module.persistent_keys, module.persistent_values]
    assert all((found != 0).all() for found in gradients(module(x64(2, 5, 12)), slots))


def test_none_is_plain_attention():
    module = make(persistent=0)
    assert module.persistent_keys is None
    assert not any("persistent" in name for name in module.state_dict())
    x = x64(2, 5, 12)
    torch.testing.assert_close(module(x), reference.attention(module, x, x))


def test_tokens_share_what_the_slots_leave_as_without_them():
    module, plain, x = make(), make(persistent=0), x64(2, 5, 12)
    plain.load_state_dict(
        {name: value for name, value in module.state_dict().items() if "persistent" not in name}
    )
    _, probabilities = module(x, weights=True)
    left = probabilities[..., 3:].sum(-1, keepdim=True)
    assert (left < 1).all()
    torch.testing.assert_close(probabilities[..., 3:] / left, plain(x, weights=True)[1])
    torch.testing.assert_close(probabilities.sum(-1), torch.ones_like(probabilities[..., 0]))


def test_slots_have_no_order():
    module, x = make(), x64(2, 5, 12)
    before = module(x)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        module.persistent_keys.copy_(module.persistent_keys[:, order])
        module.persistent_values.copy_(module.persistent_values[:, order])
    torch.testing.assert_close(module(x), before)


def test_slots_are_visible_to_all_and_know_no_position():
    """A sequence of padding still sees them, and no bias pushes them away."""
    module, x = make(causal=True), x64(2, 5, 12)
    nothing = torch.zeros(2, 5, dtype=torch.bool)
    _, probabilities = module(x, mask=nothing, weights=True)
    assert (probabilities[..., 3:] == 0).all()
    far = -1e4 * torch.ones(4, 5, 5, dtype=torch.float64)
    torch.testing.assert_close(module(x, bias=far, weights=True)[1], probabilities)


def test_unit_variance_at_use_from_the_start():
    module = SelfAttention(64, 2, persistent=256)
    torch.manual_seed(0)
    module.reset_parameters()
    assert module.persistent_keys.std().item() == pytest.approx(32**-0.5, rel=0.05)
    assert module.persistent_values.std().item() == pytest.approx(256**-0.5, rel=0.05)


def test_slots_are_not_cached_twice():
    module, x, cache = make(causal=True, kv_heads=2), x64(2, 5, 12), KVCache(1)
    steps = [module(x[:, :2], cache=cache[0]), module(x[:, 2:], cache=cache[0])]
    torch.testing.assert_close(torch.cat(steps, 1), module(x))
    assert cache.length == 5


def test_a_wiring_s_query_key_norm_is_refused():
    assert "3 persistent keys" in make().find_plug_conflict(Plugs(key=F.relu))
    assert make().find_plug_conflict(Plugs(inner=F.relu)) is None
