"""Attention against a textbook reference and torch.nn.MultiheadAttention."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from addnorm.core.errors import UserError
from addnorm.core.plan import Plugs
from addnorm.sublayers import CrossAttention, KVCache, SelfAttention, masks
from addnorm.sublayers.positions import Rotation
from tests.bfloat16_bounds import assert_bfloat16_close
from tests.helpers import gradients, perturb, tokens
from tests.sublayers import reference

TOLERANCE = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
}


def make_attention(kind=SelfAttention, dim=12, heads=4, dtype=torch.float32, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return perturb(kind(dim, heads, **options)).to(dtype)


def random_mask(batch=3, length=7):
    """Return a random mask in which the first token of every row is valid."""
    mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[:, 0] = True
    return mask


def assert_close(a, b, dtype=torch.float32):
    torch.testing.assert_close(a, b, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_self_attention_matches_reference(dtype, kv_heads, causal, masked, biased):
    module = make_attention(kv_heads=kv_heads, causal=causal, head_dim=5, dtype=dtype)
    x = tokens(3, 7, 12, dtype=dtype).requires_grad_()
    mask = random_mask() if masked else None
    bias = tokens(4, 7, 7, dtype=dtype).requires_grad_() if biased else None
    allowed = reference.causal_mask(7) if causal else torch.ones(7, 7, dtype=torch.bool)
    allowed = allowed & mask[:, None, None, :] if masked else allowed
    ours = module(x, mask=mask, bias=bias)
    expected = reference.attention(module, x, x, allowed=allowed, bias=bias)
    assert_close(ours, expected, dtype)
    inputs = [x, *module.parameters(), *([bias] if biased else [])]
    for a, b in zip(gradients(ours, inputs), gradients(expected, inputs), strict=True):
        assert_close(a, b, dtype)


@pytest.mark.parametrize("kind", [SelfAttention, CrossAttention])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_bfloat16_matches_float32_reference(kind, kv_heads, masked):
    """Compare output and gradients; the reference uses the rounded inputs and weights."""
    module = make_attention(kind, kv_heads=kv_heads, dtype=torch.bfloat16)
    x = tokens(3, 7, 12, dtype=torch.bfloat16).requires_grad_()
    mask = random_mask() if masked else None
    y = module(x, mask=mask) if kind is SelfAttention else module(x, x, memory_mask=mask)
    actual = [y, *gradients(y, [x, *module.parameters()])]
    exact, exact_x = copy.deepcopy(module).float(), x.detach().float().requires_grad_()

    def run_reference():
        allowed = mask[:, None, None, :] if masked else None
        y = reference.attention(exact, exact_x, exact_x, allowed=allowed)
        return [y, *gradients(y, [exact_x, *exact.parameters()])]

    assert_bfloat16_close(actual, run_reference)


@pytest.mark.parametrize("options", [{"scale": 1.0}, {"cap": 0.7}, {"scale": 0.3, "cap": 2.0}])
@pytest.mark.parametrize("causal", [False, True])
def test_scale_and_soft_cap_match_reference(options, causal):
    dtype = torch.float64
    module = make_attention(causal=causal, kv_heads=2, dtype=dtype, **options)
    x = tokens(3, 7, 12, dtype=dtype).requires_grad_()
    mask = random_mask()
    allowed = reference.causal_mask(7) if causal else torch.ones(7, 7, dtype=torch.bool)
    allowed = allowed & mask[:, None, None, :]
    ours = module(x, mask=mask)
    expected = reference.attention(module, x, x, allowed=allowed, **options)
    assert_close(ours, expected, dtype)
    inputs = [x, *module.parameters()]
    for a, b in zip(gradients(ours, inputs), gradients(expected, inputs), strict=True):
        assert_close(a, b, dtype)
    torch.testing.assert_close(module(x, mask=mask, weights=True)[0], ours)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 3, 7, 100])
def test_window_hides_distant_tokens(causal, window):
    module = make_attention(causal=causal, window=window, dtype=torch.float64)
    x = tokens(3, 7, 12, dtype=torch.float64)
    in_window = torch.tensor([[abs(i - j) < window for j in range(7)] for i in range(7)])
    allowed = in_window & reference.causal_mask(7) if causal else in_window
    assert_close(module(x), reference.attention(module, x, x, allowed=allowed), torch.float64)


def test_window_with_cache():
    module = make_attention(causal=True, window=3, dtype=torch.float64)
    x = tokens(3, 7, 12, dtype=torch.float64)
    cache = KVCache(1)
    parts = [module(part, cache=cache[0]) for part in x.split([4, 1, 2], 1)]
    assert_close(torch.cat(parts, 1), module(x), torch.float64)


def test_output_bias_is_independent():
    module = make_attention(bias=True, out_bias=False)
    assert module.q_proj.bias is not None and module.out_proj.bias is None


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_cross_attention_matches_reference(dtype, kv_heads):
    module = make_attention(
        CrossAttention, memory_dim=9, kv_heads=kv_heads, bias=False, dtype=dtype
    )
    x, memory = tokens(3, 5, 12, dtype=dtype), tokens(3, 7, 9, dtype=dtype)
    x.requires_grad_()
    memory.requires_grad_()
    mask = random_mask()
    ours = module(x, memory, memory_mask=mask)
    expected = reference.attention(module, x, memory, allowed=mask[:, None, None, :])
    assert_close(ours, expected, dtype)
    inputs = [x, memory, *module.parameters()]
    for a, b in zip(gradients(ours, inputs), gradients(expected, inputs), strict=True):
        assert_close(a, b, dtype)


def make_torch_attention(module):
    theirs = nn.MultiheadAttention(12, 4, batch_first=True)
    linears = (module.q_proj, module.k_proj, module.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in linears]))
        theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in linears]))
        theirs.out_proj.load_state_dict(module.out_proj.state_dict())
    return theirs


@pytest.mark.peer
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_torch_multihead_attention_with_negated_masks(causal, masked):
    module, x = make_attention(causal=causal), tokens(3, 7, 12)
    padding = ~random_mask() if masked else None  # torch: True at padding
    forbidden = ~reference.causal_mask(7) if causal else None  # torch: True where forbidden
    theirs, probabilities = make_torch_attention(module)(
        x, x, x, key_padding_mask=padding, attn_mask=forbidden, average_attn_weights=False
    )
    mask = None if padding is None else masks.from_torch_padding(padding)
    visible = None if forbidden is None else masks.from_torch_attention(forbidden)
    ours, weights = module(x, mask=mask, visible=visible, weights=True)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    torch.testing.assert_close(weights, probabilities, rtol=0, atol=1e-5)
    torch.testing.assert_close(module(x, mask=mask), theirs, rtol=0, atol=1e-5)


@pytest.mark.peer
def test_cross_attention_equals_torch_multihead_attention():
    module, x, memory = make_attention(CrossAttention), tokens(3, 5, 12), tokens(3, 7, 12, seed=9)
    mask = random_mask()
    theirs, _ = make_torch_attention(module)(x, memory, memory, key_padding_mask=~mask)
    torch.testing.assert_close(module(x, memory, memory_mask=mask), theirs, rtol=0, atol=1e-5)


def test_grouped_keys_equal_repeated_heads():
    grouped, plain = make_attention(kv_heads=2), make_attention()
    for name in ("k_proj", "v_proj"):
        grouped_proj, plain_proj = getattr(grouped, name), getattr(plain, name)
        with torch.no_grad():
            plain_proj.weight.copy_(
                grouped_proj.weight.view(2, 1, 3, 12).expand(2, 2, 3, 12).reshape(12, 12)
            )
            plain_proj.bias.copy_(grouped_proj.bias.view(2, 1, 3).expand(2, 2, 3).reshape(12))
    plain.q_proj.load_state_dict(grouped.q_proj.state_dict())
    plain.out_proj.load_state_dict(grouped.out_proj.state_dict())
    assert_close(grouped(tokens(3, 7, 12)), plain(tokens(3, 7, 12)))


VARIANTS = [
    {},
    {"causal": True},
    {"kv_heads": 2, "causal": True},
    {"persistent": 3},
    {"persistent": 3, "causal": True, "kv_heads": 1},
    {"qk_norm": "cosine"},
]


@pytest.mark.parametrize("options", VARIANTS)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_returned_weights_match_kernel_output(options, masked, biased):
    """The explicit path equals the kernel, and its probabilities sum to one."""
    module, x = make_attention(**options), tokens(3, 7, 12).requires_grad_()
    context = {
        "mask": random_mask() if masked else None,
        "bias": tokens(4, 7, 7) if biased else None,
    }
    y, probabilities = module(x, **context, weights=True)
    kernel = module(x, **context)
    assert_close(y, kernel)
    inputs = [x, *module.parameters()]
    for a, b in zip(gradients(y, inputs), gradients(kernel, inputs), strict=True):
        assert_close(a, b)
    assert probabilities.shape == (3, 4, 7, 7 + options.get("persistent", 0))
    assert_close(probabilities.sum(-1), torch.ones(3, 4, 7))
    if masked:
        padding = ~context["mask"][:, None, None, :]
        assert (probabilities[..., -7:].masked_select(padding) == 0).all()


def test_causal_output_ignores_later_tokens():
    module, x = make_attention(causal=True), tokens(1, 6, 12)
    for index in range(6):
        changed = x.clone()
        changed[:, index] += 1
        difference = (module(changed) - module(x)).abs().amax(-1)[0]
        assert (difference[:index] == 0).all()
        assert (difference[index:] > 0).all()


@pytest.mark.parametrize("ndim", [2, 3, 4, "heads"])
def test_visible_replaces_causal_mask(ndim):
    """Prefix language model: prefix tokens see each other, later tokens are causal."""
    module, x, other = make_attention(causal=True), tokens(2, 6, 12), make_attention(causal=False)
    visible = masks.prefix_mask(torch.tensor([3, 3]), 6)
    shaped = {
        2: visible[0],
        3: visible,
        4: visible[:, None],
        "heads": visible[:, None].expand(2, 4, 6, 6),
    }[ndim]
    y = module(x, visible=shaped)
    assert_close(y, reference.attention(module, x, x, allowed=visible[:, None]))
    assert_close(y[:, :3], other(x[:, :3]))
    assert_close(module(x, visible=masks.causal_mask(6)), module(x))
    assert_close(module(x, visible=torch.ones(6, 6, dtype=torch.bool)), other(x))


def test_visible_per_head():
    module, x = make_attention(), tokens(2, 5, 12)
    visible = torch.rand(2, 4, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    visible |= torch.eye(5, dtype=torch.bool)
    assert_close(module(x, visible=visible), reference.attention(module, x, x, allowed=visible))


@pytest.mark.parametrize("causal", [False, True])
@settings(max_examples=25)
@given(mask=st.lists(st.booleans(), min_size=1, max_size=9).filter(any))
def test_padded_equals_trimmed(causal, mask):
    """Padding at any index does not change the valid tokens."""
    module, keep = make_attention(causal=causal), torch.tensor(mask)
    x = tokens(1, len(mask), 12)
    padded = module(x.masked_fill(~keep[None, :, None], 1e3), mask=keep[None])
    assert_close(padded[:, keep], module(x[:, keep]))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("options", [*VARIANTS, {"dropout": 0.5}])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_all_padding_sequence_gives_zeros_and_finite_gradients(dtype, options, biased, weights):
    module = make_attention(**options, dtype=dtype)
    x = tokens(2, 7, 12, dtype=dtype).requires_grad_()
    bias = tokens(4, 7, 7, dtype=dtype).requires_grad_() if biased else None
    mask = torch.tensor([[False] * 7, [True] * 7])
    y = module(x, mask=mask, bias=bias, weights=weights)
    y = y[0] if weights else y
    if not options.get("persistent"):
        assert (y[0] == module.out_proj.bias).all()
    inputs = [x, *module.parameters(), *([bias] if biased else [])]
    for tensor in (y, *gradients(y, inputs)):
        assert tensor.isfinite().all()


def test_padding_longer_than_kernel_blocks():
    """Some blocks of keys consist of padding only."""
    module, x = make_attention(), tokens(2, 1100, 12).requires_grad_()
    mask = torch.zeros(2, 1100, dtype=torch.bool)
    mask[0, -2:] = True
    y = module(x, mask=mask)
    assert_close(y[0, -2:], module(x[:1, -2:])[0])
    assert gradients(y, [x])[0].isfinite().all()
    with torch.no_grad():
        assert_close(module(x, mask=mask), y.detach())


def test_dropout_acts_only_in_training():
    module, x = make_attention(dropout=0.5), tokens(3, 7, 12)
    assert not torch.equal(module(x), module(x))
    module.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert torch.equal(module(x), module(x))
    assert_close(module(x), make_attention()(x))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("kind", [SelfAttention, CrossAttention])
def test_state_dict_names_and_round_trip(kind):
    names = [f"{p}_proj.{part}" for p in ("q", "k", "v", "out") for part in ("weight", "bias")]
    module = make_attention(kind)
    assert list(module.state_dict()) == names
    other = kind(12, 4)
    other.load_state_dict(module.state_dict())
    args = (tokens(2, 3, 12),) * (1 if kind is SelfAttention else 2)
    assert torch.equal(module(*args), other(*args))


def test_roles_and_shape():
    module = SelfAttention(12, 4, kv_heads=2, head_dim=5)
    roles = {(role, tuple(weight.shape)) for role, weight in module.roles()}
    assert roles == {
        ("query", (20, 12)),
        ("key", (10, 12)),
        ("value", (10, 12)),
        ("out", (12, 20)),
        ("bias", (20,)),
        ("bias", (10,)),
        ("bias", (12,)),
    }
    shape = module.shape
    assert (shape.inner, shape.hidden) == (20, 20)
    assert (shape.heads, shape.key_heads, shape.head_dim) == (4, 2, 5)


def test_order_and_shapes_of_plugs():
    """Plugs run in the documented order, with the documented shapes."""
    module = make_attention(kv_heads=2, dtype=torch.float64)
    x, calls = tokens(3, 7, 12).double(), []

    def plug(name, factor):
        def act(y):
            calls.append((name, tuple(y.shape)))
            return factor * y

        return act

    def match(q, k):
        calls.append(("match", tuple(q.shape), tuple(k.shape)))
        return 5 * q, k

    class TripleRotation(Rotation):
        def __call__(self, y):
            calls.append(("rotation", tuple(y.shape)))
            return 3 * y

    rotation = TripleRotation(torch.ones(7, 1), torch.zeros(7, 1), interleaved=False)

    plugs = Plugs(
        query=plug("query", 2.0),
        key=plug("key", 0.5),
        value=plug("value", -1.0),
        heads=plug("heads", 2.0),
        inner=plug("inner", 0.25),
        match=match,
        logit_scale=0.1,
    )
    y = module(x, plugs=plugs, rotation=rotation)
    assert calls == [
        ("query", (3, 4, 7, 3)),
        ("key", (3, 2, 7, 3)),
        ("value", (3, 2, 7, 3)),
        ("rotation", (3, 4, 7, 3)),
        ("rotation", (3, 2, 7, 3)),
        ("match", (3, 4, 7, 3), (3, 2, 7, 3)),
        ("heads", (3, 4, 7, 3)),
        ("inner", (3, 7, 12)),
    ]
    q, k, v = (
        reference.split(linear(x), heads)
        for linear, heads in ((module.q_proj, 4), (module.k_proj, 2), (module.v_proj, 2))
    )
    one, zero = torch.tensor(True), torch.zeros(())
    heads, _ = reference.attend(2 * 3 * 5 * q, 0.5 * 3 * k, -v, 0.1, one, zero)
    assert_close(y, module.out_proj(2 * 0.25 * heads.flatten(2)), torch.float64)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SelfAttention(10, 4), "heads: expected a divisor of dim=10, got 4"),
        (
            lambda: SelfAttention(12, 4, kv_heads=3),
            "kv_heads: expected a divisor of heads=4, got 3",
        ),
        (lambda: SelfAttention(12, 0), "heads: expected an integer of at least 1, got 0"),
        (lambda: SelfAttention(12, 4, kv_heads=0), "kv_heads: expected an integer of at least 1"),
        (lambda: SelfAttention(12, 4, head_dim=0), "head_dim: expected an integer of at least 1"),
        (lambda: SelfAttention(12, 4, dropout=1.0), "dropout: expected a number from 0 to below 1"),
        (
            lambda: SelfAttention(12, 4, persistent=-1),
            "persistent: expected an integer of at least 0",
        ),
        (lambda: SelfAttention(12, 4, qk_norm="rmshead"), "did you mean 'rms_head'"),
        (
            lambda: SelfAttention(12, 4, qk_norm="l2", persistent=2),
            "no paper defines a query-key norm of persistent keys",
        ),
        (
            lambda: CrossAttention(12, 4, memory_dim=0),
            "memory_dim: expected an integer of at least 1",
        ),
        (
            lambda: SelfAttention(12, 4, window=0),
            "window: expected an integer of at least 1, got 0",
        ),
        (lambda: SelfAttention(12, 4, cap=-1.0), "cap: expected a positive number, at most"),
        (lambda: SelfAttention(12, 4, scale=0.0), "scale: expected a positive number, at most"),
    ],
)
def test_errors_at_construction(build, message):
    with pytest.raises(UserError, match=message):
        build()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, x: s(x[0]), r"\(B, L, 12\), got torch.float32 of shape \(7, 12\)"),
        (lambda s, x: s(x.long()), "expected floating point"),
        (lambda s, x: s(x, mask=torch.ones(3, 7)), "torch's key_padding_mask .* pass ~key_pad"),
        (lambda s, x: s(x, mask=torch.ones(3, 8).bool()), "one entry per token"),
        (lambda s, x: s(x, visible=torch.ones(7, 7)), "visible: expected boolean"),
        (lambda s, x: s(x, visible=torch.ones(7).bool()), r"got torch.bool of shape \(7,\)"),
        (lambda s, x: s(x, visible=torch.ones(4, 7, 7).bool()), r"attn_mask .* pass ~attn_mask"),
        (
            lambda s, x: s(x, bias=torch.ones(7, 7)),
            r"bias: expected .* \(4, 7, 7\) or \(3, 4, 7, 7",
        ),
        (lambda s, x: s(x, bias=torch.ones(4, 7, 7).int()), "bias: expected floating point"),
    ],
)
def test_errors_of_self_attention(call, message):
    with pytest.raises(UserError, match=message):
        call(make_attention(), tokens(3, 7, 12))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, x: c(x, tokens(3, 5, 11)), r"memory: expected .* \(B, L, 12\)"),
        (lambda c, x: c(x, tokens(2, 5, 12)), "memory: expected a batch of 3, .* got 2"),
        (lambda c, x: c(x, tokens(3, 5, 12), memory_mask=torch.ones(3, 7).bool()), "memory_mask"),
        (
            lambda c, x: c(x, tokens(3, 5, 12), memory_mask=torch.ones(3, 5)),
            "memory_mask: expected booleans",
        ),
    ],
)
def test_errors_of_cross_attention(call, message):
    with pytest.raises(UserError, match=message):
        call(make_attention(CrossAttention), tokens(3, 7, 12))
