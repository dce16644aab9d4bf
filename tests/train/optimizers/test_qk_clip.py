"""QK-clip: exact scaling of logits, and nothing else."""

import pytest
import torch

from addnorm import UserError
from addnorm.sublayers import SelfAttention
from addnorm.train.optimizers.qk_clip import QKClip, clip_query_key
from tests.helpers import perturb, tokens


def make_attention(**options):
    torch.manual_seed(0)
    attention = perturb(SelfAttention(12, 4, kv_heads=2, **options)).double()
    with torch.no_grad():
        attention.q_proj.weight[:3].mul_(20)  # the first of four heads
    return attention


def largest_logits(attention, x):
    q = attention.q_proj(x).view(2, 5, 4, 3)
    k = attention.k_proj(x).view(2, 5, 2, 3).repeat_interleave(2, 2)
    return (torch.einsum("blhk,bshk->bhls", q, k) / 3**0.5).amax((0, 2, 3))


def test_heads_above_the_bound_end_at_it_and_others_stay():
    attention, x = make_attention(), tokens(2, 5, 12, dtype=torch.float64)
    before = largest_logits(attention, x)
    tau = float(before[2:].max().detach()) + 0.1
    assert float(before[0].detach()) > tau
    clip = QKClip([attention], tau=tau)
    attention.train()(x)
    assert clip.apply() == 1
    after = largest_logits(attention, x)
    eta = tau / before[:2].max()
    torch.testing.assert_close(after[:2], before[:2] * eta)  # heads of one key head share eta
    torch.testing.assert_close(after[2:], before[2:])
    torch.testing.assert_close(after[:2].max(), torch.tensor(tau, dtype=torch.float64))
    assert clip.apply() == 0  # no forward pass since


@pytest.mark.parametrize("balance", [0.0, 0.3, 1.0])
def test_balance_moves_the_factor_between_queries_and_keys(balance):
    attention, x = make_attention(), tokens(2, 5, 12, dtype=torch.float64)
    before = largest_logits(attention, x)
    key = attention.k_proj.weight.detach().clone()
    clip_query_key(attention, before.detach(), tau=1.0, balance=balance)
    torch.testing.assert_close(
        largest_logits(attention, x).view(2, 2).amax(1), torch.ones(2, dtype=torch.float64)
    )
    assert torch.equal(attention.k_proj.weight, key) is (balance == 1.0)


def test_evaluation_does_not_count():
    attention, x = make_attention(), tokens(2, 5, 12, dtype=torch.float64)
    clip = QKClip([attention], tau=1e-3)
    attention.eval()(x)
    assert clip.apply() == 0
    clip.remove()
    assert not attention.has_hooks


def test_a_query_key_norm_is_refused():
    with pytest.raises(UserError, match="qk_clip: expected attention without a query-key norm"):
        QKClip([SelfAttention(12, 4, qk_norm="rms_head")])
