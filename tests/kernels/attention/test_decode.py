"""Native attention of few queries against a float64 reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.kernels import library
from addnorm.kernels.attention import decode

LEVELS = library.list_levels()
pytestmark = pytest.mark.skipif(not LEVELS, reason="the native library was not built")


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reference_attention(q, k, v, visible, scale):
    """Compute attention in float64; a query without visible keys gets zeros."""
    k, v = (each.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    logits = scale * q.double() @ k.mT
    if visible is not None:
        logits = logits.masked_fill(~visible, -torch.inf)
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
def test_matches_reference(level, batch, groups, count, keys, dim, mask, seed):
    heads, kv_heads = groups
    q = randn(batch, heads, count, dim, seed=seed)
    k, v = (randn(batch, kv_heads, keys, dim, seed=seed + n) for n in (1, 2))
    shapes = {
        "padding": (batch, 1, 1, keys),
        "each": (batch, 1, count, keys),
        "heads": (1, heads, count, keys),
    }
    visible = randn(*shapes[mask], seed=seed + 3) > 0 if mask in shapes else None
    with library.use_level(level):
        actual = decode.decode_attention(q, k, v, visible, scale=0.3)
    expected = reference_attention(q, k, v, visible, 0.3)
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_strided_keys_values_and_queries(level):
    buffer = randn(2, 3, 40, 16, seed=1)
    k, v = buffer[:, :, :23], randn(2, 23, 3, 16, seed=2).transpose(1, 2)
    q = randn(2, 1, 3, 16).transpose(1, 2)
    transposed = randn(2, 3, 16, 23, seed=4).mT
    with library.use_level(level):
        torch.testing.assert_close(
            decode.decode_attention(q, k, v, None, scale=0.25),
            reference_attention(q, k, v, None, 0.25).float(),
        )
        torch.testing.assert_close(
            decode.decode_attention(q, transposed, v, None, scale=0.25),
            reference_attention(q, transposed, v, None, 0.25).float(),
        )


@pytest.mark.parametrize("level", LEVELS)
def test_masked_keys_are_not_read(level):
    q, k, v = (randn(1, 2, n, 8, seed=n) for n in (1, 5, 5))
    visible = torch.tensor([True, False, True, True, False]).expand(1, 1, 1, 5)
    corrupted = [each.clone() for each in (k, v)]
    for each in corrupted:
        each[:, :, [1, 4]] = torch.nan
    with library.use_level(level):
        assert torch.equal(
            decode.decode_attention(q, *corrupted, visible, scale=1.0),
            decode.decode_attention(q, k, v, visible, scale=1.0),
        )


@pytest.mark.parametrize("level", LEVELS)
def test_nan_key_affects_only_its_head(level):
    q, k, v = (randn(2, 2, n, 8, seed=n) for n in (1, 5, 5))
    k[0, 0, 3, 2] = torch.nan
    with library.use_level(level):
        actual = decode.decode_attention(q, k, v, None, scale=1.0)
    assert actual[0, 0].isnan().all()
    assert actual[0, 1].isfinite().all() and actual[1].isfinite().all()


def test_huge_logits_stay_finite():
    q, k, v = (100 * randn(1, 1, n, 8, seed=n) for n in (1, 5, 5))
    torch.testing.assert_close(
        decode.decode_attention(q, k, v, None, scale=10.0),
        reference_attention(q, k, v, None, 10.0).float(),
    )


def test_empty_batch_and_empty_keys():
    no_rows = decode.decode_attention(
        randn(0, 2, 1, 8), randn(0, 2, 3, 8), randn(0, 2, 3, 8), None, scale=1.0
    )
    assert no_rows.shape == (0, 2, 1, 8)
    no_keys = decode.decode_attention(
        randn(1, 2, 1, 8), randn(1, 2, 0, 8), randn(1, 2, 0, 8), None, scale=1.0
    )
    assert (no_keys == 0).all()


def test_results_do_not_depend_on_thread_count():
    q, k, v = (randn(5, 3, n, 20, seed=n) for n in (2, 33, 33))
    before, outputs = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outputs.append(decode.decode_attention(q, k, v, None, scale=0.2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, outputs[0]) for each in outputs)


def test_unsupported_inputs_use_torch():
    q, k, v = (randn(1, 1, n, 16) for n in (1, 5, 5))
    assert decode.can_use_decode_attention(q, k, v, None)
    assert not decode.can_use_decode_attention(q.requires_grad_(), k, v, None)
    with torch.no_grad():
        assert decode.can_use_decode_attention(q, k, v, None)
    q = q.detach()
    assert not decode.can_use_decode_attention(q.double(), k.double(), v.double(), None)
    assert not decode.can_use_decode_attention(randn(1, 1, 2, 16), k, v, None)
    assert decode.can_use_decode_attention(randn(1, 1, 2, 16), *[randn(1, 1, 8, 16)] * 2, None)
    assert not decode.can_use_decode_attention(
        randn(1, 1, decode.MAX_QUERIES + 1, 16), *[randn(1, 1, 99, 16)] * 2, None
    )
    assert not decode.can_use_decode_attention(*(each[..., :9] for each in (q, k, v)), None)
    assert not decode.can_use_decode_attention(q, k, v, torch.zeros(1, 1, 1, 5))
    with library.use_level("off"):
        assert not decode.can_use_decode_attention(q, k, v, None)
