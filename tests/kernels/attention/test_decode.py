"""Attention of few queries, natively, against its definition in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.kernels import library
from addnorm.kernels.attention import decode

LEVELS = library.levels()
pytestmark = pytest.mark.skipif(not LEVELS, reason="the native library was not built")


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_hand(q, k, v, seen, scale):
    """The definition; zeros for whoever sees nothing."""
    k, v = (each.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    logits = scale * q.double() @ k.mT
    if seen is not None:
        logits = logits.masked_fill(~seen, -torch.inf)
    return logits.softmax(-1).nan_to_num(0.0) @ v


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=50, deadline=None)
@given(
    batch=st.integers(1, 4),
    groups=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    count=st.integers(1, 6),
    keys=st.integers(1, 70),
    dim=st.integers(1, 70),
    mask=st.sampled_from(["none", "padding", "each", "heads"]),
    seed=st.integers(0, 50),
)
def test_it_is_the_definition(level, batch, groups, count, keys, dim, mask, seed):
    heads, kv_heads = groups
    q = drawn(batch, heads, count, dim, seed=seed)
    k, v = (drawn(batch, kv_heads, keys, dim, seed=seed + n) for n in (1, 2))
    shapes = {
        "padding": (batch, 1, 1, keys),
        "each": (batch, 1, count, keys),
        "heads": (1, heads, count, keys),
    }
    seen = drawn(*shapes[mask], seed=seed + 3) > 0 if mask in shapes else None
    with library.use_level(level):
        found = decode.decode_attention(q, k, v, seen, scale=0.3)
    wanted = by_hand(q, k, v, seen, 0.3)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_keys_may_stand_in_a_larger_room_and_in_any_order(level):
    room = drawn(2, 3, 40, 16, seed=1)
    k, v = room[:, :, :23], drawn(2, 23, 3, 16, seed=2).transpose(1, 2)
    q = drawn(2, 1, 3, 16).transpose(1, 2)
    turned = drawn(2, 3, 16, 23, seed=4).mT
    with library.use_level(level):
        torch.testing.assert_close(
            decode.decode_attention(q, k, v, None, scale=0.25), by_hand(q, k, v, None, 0.25).float()
        )
        torch.testing.assert_close(
            decode.decode_attention(q, turned, v, None, scale=0.25),
            by_hand(q, turned, v, None, 0.25).float(),
        )


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_hidden_is_not_looked_at(level):
    q, k, v = (drawn(1, 2, n, 8, seed=n) for n in (1, 5, 5))
    seen = torch.tensor([True, False, True, True, False]).expand(1, 1, 1, 5)
    spoilt = [each.clone() for each in (k, v)]
    for each in spoilt:
        each[:, :, [1, 4]] = torch.nan
    with library.use_level(level):
        assert torch.equal(
            decode.decode_attention(q, *spoilt, seen, scale=1.0),
            decode.decode_attention(q, k, v, seen, scale=1.0),
        )


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_no_number_comes_out(level):
    q, k, v = (drawn(2, 2, n, 8, seed=n) for n in (1, 5, 5))
    k[0, 0, 3, 2] = torch.nan
    with library.use_level(level):
        found = decode.decode_attention(q, k, v, None, scale=1.0)
    assert found[0, 0].isnan().all()
    assert found[0, 1].isfinite().all() and found[1].isfinite().all()


def test_huge_logits_stay_finite():
    q, k, v = (100 * drawn(1, 1, n, 8, seed=n) for n in (1, 5, 5))
    torch.testing.assert_close(
        decode.decode_attention(q, k, v, None, scale=10.0), by_hand(q, k, v, None, 10.0).float()
    )


def test_no_rows_and_no_keys_are_no_trouble():
    none = decode.decode_attention(
        drawn(0, 2, 1, 8), drawn(0, 2, 3, 8), drawn(0, 2, 3, 8), None, scale=1.0
    )
    assert none.shape == (0, 2, 1, 8)
    blind = decode.decode_attention(
        drawn(1, 2, 1, 8), drawn(1, 2, 0, 8), drawn(1, 2, 0, 8), None, scale=1.0
    )
    assert (blind == 0).all()


def test_threads_change_no_number():
    q, k, v = (drawn(5, 3, n, 20, seed=n) for n in (2, 33, 33))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(decode.decode_attention(q, k, v, None, scale=0.2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


def test_others_are_left_to_torch():
    q, k, v = (drawn(1, 1, n, 16) for n in (1, 5, 5))
    assert decode.can_use_decode_attention(q, k, v, None)
    assert not decode.can_use_decode_attention(q.requires_grad_(), k, v, None)
    with torch.no_grad():
        assert decode.can_use_decode_attention(q, k, v, None)
    q = q.detach()
    assert not decode.can_use_decode_attention(q.double(), k.double(), v.double(), None)
    assert not decode.can_use_decode_attention(drawn(1, 1, 2, 16), k, v, None)
    assert decode.can_use_decode_attention(drawn(1, 1, 2, 16), *[drawn(1, 1, 8, 16)] * 2, None)
    assert not decode.can_use_decode_attention(
        drawn(1, 1, decode.MAX_QUERIES + 1, 16), *[drawn(1, 1, 99, 16)] * 2, None
    )
    assert not decode.can_use_decode_attention(*(each[..., :9] for each in (q, k, v)), None)
    assert not decode.can_use_decode_attention(q, k, v, torch.zeros(1, 1, 1, 5))
    with library.use_level("off"):
        assert not decode.can_use_decode_attention(q, k, v, None)
