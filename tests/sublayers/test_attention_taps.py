"""Taps of attention: recorded tensors, and no cost without hooks."""

import pytest
import torch

from addnorm import CrossAttention, SelfAttention
from addnorm.stacks.taps import Tap
from tests.helpers import tokens


def run_with_hooks(attention, *args, **kwargs):
    """Return (y, logits, probabilities) of a call with hooks on both taps."""
    outputs = {}
    hooks = [
        getattr(attention, f"{name}_tap").register_forward_hook(
            lambda tap, args, output, name=name: outputs.setdefault(name, output)
        )
        for name in ("logits", "probabilities")
    ]
    y = attention(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    return y, outputs["logits"], outputs["probabilities"]


def test_taps_add_no_state_dict_entries():
    attention = SelfAttention(12, 3)
    assert isinstance(attention.logits_tap, Tap)
    assert sorted({name.split(".")[0] for name in attention.state_dict()}) == [
        *("k_proj", "out_proj", "q_proj", "v_proj")
    ]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("options", [{}, {"cap": 2.0}, {"kv_heads": 1}, {"scale": 1.0}])
def test_taps_receive_logits_and_probabilities(causal, options):
    torch.manual_seed(0)
    attention = SelfAttention(12, 3, causal=causal, **options)
    x, mask = tokens(2, 5, 12), torch.arange(5) < torch.tensor([5, 3])[:, None]
    bias = tokens(3, 5, 5, seed=8)
    y, logits, probabilities = run_with_hooks(attention, x, mask=mask, bias=bias)
    q = attention.q_proj(x).unflatten(-1, (3, 4)).transpose(1, 2)
    k = attention.k_proj(x).unflatten(-1, (-1, 4)).transpose(1, 2)
    expected = (q @ k.mT) * options.get("scale", 0.5)  # one key head broadcasts
    if "cap" in options:
        expected = 2.0 * torch.tanh(expected / 2.0)
    visible = mask[:, None, None, :].expand(2, 3, 5, 5)
    visible = visible & torch.ones(5, 5).tril().bool() if causal else visible
    torch.testing.assert_close(logits, expected.masked_fill(~visible, -torch.inf))
    torch.testing.assert_close(
        probabilities, (expected + bias).masked_fill(~visible, -torch.inf).softmax(-1)
    )
    torch.testing.assert_close(y, attention(x, mask=mask, bias=bias))


def test_logits_are_masked_only_where_causal():
    x = tokens(1, 4, 8)
    assert run_with_hooks(SelfAttention(8, 2), x)[1].isfinite().all()
    _, logits, probabilities = run_with_hooks(SelfAttention(8, 2, causal=True), x)
    hidden = torch.ones(4, 4).triu(1).bool()
    assert (logits[..., hidden] == -torch.inf).all()
    assert logits[..., ~hidden].isfinite().all()
    assert (probabilities[..., hidden] == 0).all()


def test_cross_attention_taps_see_probabilities_before_dropout():
    torch.manual_seed(0)
    attention = CrossAttention(8, 2, memory_dim=6, dropout=0.5)
    _, logits, probabilities = run_with_hooks(attention, tokens(2, 3, 8), tokens(2, 5, 6))
    assert logits.shape == probabilities.shape == (2, 2, 3, 5)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2, 2, 3))


def test_taps_without_hooks_are_not_called(monkeypatch):
    calls = []
    monkeypatch.setattr(Tap, "forward", lambda self, x: calls.append(self) or x)
    attention = SelfAttention(8, 2, causal=True)
    attention(tokens(1, 4, 8))
    attention(tokens(1, 4, 8), weights=True)
    assert calls == []


@pytest.mark.slow
def test_attention_compiles_into_one_graph():
    attention, x = SelfAttention(8, 2, causal=True), tokens(2, 4, 8)
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), attention(x))
    torch._dynamo.reset()
