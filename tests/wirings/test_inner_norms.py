"""Norms and scales inside sub-layers, compared with a layer of plain matrix products."""

import pytest
import torch
import torch.nn.functional as F

from addnorm import Decoder, Encoder, UserError
from tests.helpers import gradients, perturb, tokens

DIM, HEADS = 12, 3


def attention(a, x, *, q=None, k=None, v=None, match=None, heads=None, inner=None, scale=None):
    """Compute self-attention from its matrices, with optional plugs."""

    def split(linear):
        return F.linear(x, linear.weight, linear.bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)

    identity = lambda t: t  # noqa: E731
    query, key = (q or identity)(split(a.q_proj)), (k or identity)(split(a.k_proj))
    query, key = match(query, key) if match else (query, key)
    scale = DIM**-0.5 * HEADS**0.5 if scale is None else scale
    probabilities = (query @ key.transpose(-1, -2) * scale).softmax(-1)
    y = (heads or identity)(probabilities @ (v or identity)(split(a.v_proj)))
    y = (inner or identity)(y.transpose(1, 2).flatten(-2))
    return F.linear(y, a.out_proj.weight, a.out_proj.bias)


def feed_forward(f, x, *, hidden=None, inner=None):
    h = F.linear(x, f.up_proj.weight, f.up_proj.bias)
    h = torch.relu(h if hidden is None else hidden(h))
    return F.linear(h if inner is None else inner(h), f.down_proj.weight, f.down_proj.bias)


def sub_ln(x, a, f, w):
    x = x + attention(a, w.norms[0](x), inner=w.inner_norms["0"])
    x = x + feed_forward(f, w.norms[1](x), inner=w.inner_norms["1"])
    return w.final_norm(x)


def normformer(x, a, f, w):
    y = attention(a, w.norms[0](x), heads=lambda h: h * w.g["0"].view(1, HEADS, 1, 1))
    x = x + w.outer_norms["0"](y)
    x = x + feed_forward(f, w.norms[1](x), inner=w.inner_norms["1"])
    return w.final_norm(x)


def normformer_after(x, a, f, w):
    y = attention(a, w.norms[0](x)).unflatten(-1, (HEADS, -1)) * w.g["0"].view(HEADS, 1)
    x = x + w.outer_norms["0"](y.flatten(-2))
    x = x + feed_forward(f, w.norms[1](x), inner=w.inner_norms["1"])
    return w.final_norm(x)


def hybrid_norm(x, a, f, w):
    q, k, v = (w.head_norms[f"{part}_0"] for part in ("query", "key", "value"))
    x = x + attention(a, x, q=q, k=k, v=v)
    u = w.norms["1"](x)
    return w.final_norm(u + feed_forward(f, u))


def fixup(x, a, f, w):
    x = x + w.scale[0] * attention(a, x - w.shift[0])
    y = feed_forward(
        f,
        x - w.shift[1],
        hidden=lambda h: h - w.hidden_shift["1"],
        inner=lambda h: h - w.inner_shift["1"],
    )
    return (x + w.scale[1] * y - w.end_shift) * w.end_scale


def ngpt(x, a, f, w):
    def step(x, y, stored):
        x, y = F.normalize(x, dim=-1), F.normalize(y, dim=-1)
        return F.normalize(x + (stored * 0.05 * DIM**0.5).abs() * (y - x), dim=-1)

    def match(q, k):
        s = (w.s_qk["0"] * DIM**0.5).unsqueeze(1)
        return F.normalize(q, dim=-1) * s, F.normalize(k, dim=-1) * s

    x = step(x, attention(a, x, match=match, scale=(DIM / HEADS) ** 0.5), w.a[0])
    y = feed_forward(f, x, hidden=lambda h: h * w.s_uv["1"] * DIM**0.5)
    return step(x, y, w.a[1])


REFERENCES = {
    "sub_ln": sub_ln,
    "normformer": normformer,
    "normformer(head_scale=post)": normformer_after,
    "hybrid_norm": hybrid_norm,
    "fixup": fixup,
    "ngpt": ngpt,
}


@pytest.mark.parametrize("call", REFERENCES)
def test_plugs_equal_the_reference_forward_and_backward(call):
    torch.manual_seed(0)
    stack = perturb(Encoder(dim=DIM, depth=1, heads=HEADS, wiring=call).double())
    x = tokens(2, 5, DIM, dtype=torch.float64).requires_grad_()
    actual, expected = stack(x), REFERENCES[call](x, *stack.sublayers, stack.wiring)
    torch.testing.assert_close(actual, expected)
    inputs = [x, *stack.parameters()]
    for a, b in zip(gradients(actual, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(a, b)


def scale_weights(stack, part: str, factor: float) -> None:
    with torch.no_grad():
        for sublayer in stack.sublayers:
            if hasattr(sublayer, part):
                getattr(sublayer, part).weight.mul_(factor)
                getattr(sublayer, part).bias.mul_(factor)


def test_scale_matters_without_a_following_norm():
    stack = Encoder(dim=DIM, depth=2, heads=HEADS, wiring="sub_ln").double()
    x = tokens(2, 5, DIM, dtype=torch.float64)
    before = stack(x)
    scale_weights(stack, "out_proj", 10.0)
    assert not torch.allclose(stack(x), before, atol=1e-2)


@pytest.mark.parametrize(
    ("wiring", "part"),
    [
        ("sub_ln", "v_proj"),
        ("sub_ln", "up_proj"),
        ("hybrid_norm", "v_proj"),
        ("hybrid_norm", "q_proj"),
        ("ngpt", "q_proj"),
        ("ngpt", "out_proj"),
    ],
)
def test_scale_does_not_matter_before_a_norm(wiring, part):
    stack = Encoder(dim=DIM, depth=2, heads=HEADS, wiring=wiring).double()
    x = tokens(2, 5, DIM, dtype=torch.float64)
    before = stack(x)
    scale_weights(stack, part, 10.0)
    torch.testing.assert_close(stack(x), before, rtol=1e-3, atol=1e-3)


def test_sub_ln_does_not_change_cross_attention():
    stack = Decoder(dim=DIM, depth=2, heads=HEADS, wiring="sub_ln", other_depth=2)
    assert set(stack.wiring.inner_norms) == {"0", "2", "3", "5"}


@pytest.mark.parametrize("wiring", ["ngpt", "hybrid_norm", "normformer", "sub_ln"])
def test_every_wiring_supports_grouped_keys(wiring):
    stack = Encoder(
        dim=DIM, depth=2, heads=6, kv_heads=2, wiring=wiring, activation="swiglu", ffn_dim=20
    )
    perturb(stack)
    assert stack(tokens(2, 5, DIM)).isfinite().all()


@pytest.mark.parametrize("wiring", ["ngpt", "hybrid_norm"])
def test_second_norm_on_queries_is_rejected(wiring):
    with pytest.raises(UserError, match=rf"conflicts with wiring {wiring}"):
        Encoder(dim=DIM, depth=2, heads=HEADS, wiring=wiring, qk_norm="rms")


def test_cross_attention_of_undefined_wirings_still_runs():
    for wiring in ("hybrid_norm", "ngpt", "parallel", "normformer", "sub_ln", "fixup"):
        stack = Decoder(dim=DIM, depth=2, heads=HEADS, wiring=wiring, other_depth=2)
        y = stack(tokens(2, 5, DIM), memory=tokens(2, 4, DIM, seed=5))
        assert y.isfinite().all()


def test_ngpt_scale_on_the_gate_only():
    """The factor on the other half cancels when the branch is normalized."""
    options = {"dim": DIM, "depth": 1, "heads": HEADS, "activation": "swiglu", "bias": False}
    both = Encoder(wiring="ngpt", **options)
    gate = Encoder(wiring="ngpt(root=gate)", **options)
    weights = both.state_dict() | {"_extra_state": gate.get_extra_state()}
    gate.load_state_dict(weights)
    torch.testing.assert_close(gate(tokens(2, 5, DIM)), both(tokens(2, 5, DIM)))
    hidden = torch.ones(2 * both.sublayers[1].hidden)
    half = both.sublayers[1].hidden
    plugged = gate.wiring.plugs(gate.plan.sites[1]).hidden(hidden)
    torch.testing.assert_close(plugged[:half], torch.ones(half))
    torch.testing.assert_close(plugged[half:], torch.full((half,), DIM**0.5))
