"""Every law of folding leaves the outputs of what it rewrites unchanged, in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from addnorm.core.errors import UserError
from addnorm.exporters.folding import laws
from addnorm.sublayers import CrossAttention, FeedForward, SelfAttention, make_positions

DIM = 12


@pytest.fixture(autouse=True)
def float64_without_gradients():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    with torch.no_grad():
        yield
    torch.set_default_dtype(torch.float32)


def check(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-13, rtol=1e-13)


def layer_norm(x, eps=1e-5, gain=None, bias=None):
    return F.layer_norm(x, (DIM,), gain, bias, eps)


def rms_norm(x, eps=1e-5):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize("s", [-1.7, torch.linspace(-1, 2, DIM)])
def test_l1_branch_scale(s):
    linear, x = nn.Linear(5, DIM), torch.randn(3, 5)
    expected = s * linear(x)
    laws.scale_outputs([linear], s)
    check(linear(x), expected)


def test_l2_and_l3_input_scale_and_shift():
    for bias in (True, False):
        linear, x = nn.Linear(DIM, 5, bias=bias), torch.randn(3, DIM)
        s, t = torch.randn(DIM), torch.randn(DIM)
        expected = linear(s * x + t)
        laws.shift_inputs([linear], t)
        laws.scale_inputs([linear], s)
        check(linear(x), expected)


def test_l4_stream_scale_keeps_eps():
    f, s, z = nn.Linear(DIM, DIM), torch.randn(DIM), 0.01 * torch.randn(4, DIM)
    gain, bias = torch.randn(DIM), torch.randn(DIM)
    x = layer_norm(z, gain=gain, bias=bias)
    expected = layer_norm(s * x + f(x), eps=1e-2)
    laws.carry_scale(gain, bias, [f], s)
    x = layer_norm(z, gain=gain, bias=bias)
    check(layer_norm(x + f(x), eps=1e-2), expected)


@pytest.mark.parametrize("s", [2.5, -0.3])
def test_l5_branch_division_and_l7_sign(s):
    f, x = nn.Linear(DIM, DIM), torch.randn(4, DIM)
    branch, gain, bias = f(x), torch.randn(DIM), torch.randn(DIM)
    expected = layer_norm(s * x + branch, eps=1e-2, gain=gain, bias=bias)
    eps = laws.divide_branch(f, 1e-2, s)
    if s < 0:
        laws.negate_input(gain)
    check(layer_norm(x + f(x), eps=eps, gain=gain, bias=bias), expected)


def test_l6_eps_transport():
    f, x = nn.Linear(DIM, DIM), torch.randn(4, DIM)
    expected = layer_norm(x + f(x), eps=1e-2)
    c = laws.transport_eps([f], 1e-2, 3e-5)
    check(layer_norm(c * x + f(x), eps=3e-5), expected)


def test_l8_running_scale():
    factors, linears = (0.4, -1.3, 0.7), [nn.Linear(DIM, DIM) for _ in range(3)]
    gains, x = [torch.randn(DIM) for _ in range(4)], torch.randn(4, DIM)
    stream = x
    for c, f, gain in zip(factors, linears, gains[:3], strict=True):
        stream = c * (stream + f(gain * rms_norm(stream, 1e-2)))
    expected = gains[3] * rms_norm(stream, 1e-2)
    z, scale = x, 1.0
    for c, f, gain in zip(factors, linears, gains[:3], strict=True):
        eps = laws.divide_by_running_scale(f, gain, 1e-2, scale)
        z, scale = z + f(gain * rms_norm(z, eps)), c * scale
    eps = laws.divide_by_running_scale(nn.Linear(DIM, DIM), gains[3], 1e-2, scale)
    check(gains[3] * rms_norm(z, eps), expected)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_l9_value_and_key_bias(kv_heads):
    attention = SelfAttention(DIM, 4, kv_heads=kv_heads).eval()
    for parameter in attention.parameters():
        parameter.normal_()
    x = torch.randn(2, 5, DIM)
    expected = attention(x)
    laws.drop_value_bias(attention)
    laws.drop_key_bias(attention)
    check(attention(x), expected)
    assert not attention.v_proj.bias.any() and not attention.k_proj.bias.any()


@pytest.mark.parametrize("options", [{"qk_norm": "rms_head"}, {"cap": 3.0}, {"persistent": 2}])
def test_l9_key_bias_needs_a_plain_softmax(options):
    with pytest.raises(UserError, match="key bias"):
        laws.drop_key_bias(SelfAttention(DIM, 4, **options))


def test_l10_centering():
    f, x = nn.Linear(DIM, DIM), torch.randn(4, DIM)
    expected = layer_norm(x + f(layer_norm(x)))
    table = x.clone()
    laws.center_rows(table)
    read = f(rms_norm(table))
    laws.center_outputs([f])
    check(f(rms_norm(table)), read - read.mean(-1, keepdim=True))
    check(rms_norm(table + f(rms_norm(table))), expected)


def test_l11_permutation_of_features():
    order = torch.randperm(DIM)
    first, second, x = nn.Linear(5, DIM), nn.Linear(DIM, 3), torch.randn(4, 5)
    expected = second(first(x))
    laws.permute_outputs([first], order)
    laws.permute_inputs([second], order)
    check(second(first(x)), expected)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_l11_rotary_layouts(share):
    attention, x = SelfAttention(16, 2, kv_heads=1).eval(), torch.randn(2, 5, 16)
    places = {"dim": 16, "heads": 2}
    old, new = (
        make_positions(f"rotary(layout={layout}, share={share})", **places)
        for layout in ("interleaved", "half")
    )
    index = torch.arange(5)
    expected = attention(x, rotation=old.rotation(index))
    laws.rotary_to_half(attention, old.rotary_dim)
    check(attention(x, rotation=new.rotation(index)), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_l12_groups(bias):
    grouped = SelfAttention(DIM, 6, kv_heads=2, bias=bias).eval()
    full, x = SelfAttention(DIM, 6, bias=bias).eval(), torch.randn(2, 5, DIM)
    full.q_proj, full.out_proj = grouped.q_proj, grouped.out_proj
    full.k_proj, full.v_proj = laws.repeat_key_heads(grouped)
    check(full(x), grouped(x))


def test_readers_and_writers():
    attention, cross = SelfAttention(DIM, 2), CrossAttention(DIM, 2)
    gated, plain = FeedForward(DIM, activation="swiglu"), FeedForward(DIM)
    assert laws.readers(attention) == [attention.q_proj, attention.k_proj, attention.v_proj]
    assert laws.readers(cross) == [cross.q_proj]
    assert laws.memory_readers(cross) == [cross.k_proj, cross.v_proj]
    assert laws.memory_readers(attention) == laws.memory_readers(plain) == []
    assert laws.readers(gated) == [gated.up_proj, gated.gate_proj]
    assert laws.writer(plain) is plain.down_proj and laws.writer(cross) is cross.out_proj
