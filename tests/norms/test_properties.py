"""Invariances of norms, tested on random inputs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.norms.cases import CASES, DIM, F64, SHAPE, double, fresh, needs, randn, tokens

close = torch.testing.assert_close

search = settings(max_examples=20, derandomize=True, database=None)
seeds = st.integers(0, 2**16)
factors = st.floats(0.05, 20)
shifts = st.floats(-50, 50)

SCALE_INVARIANT = [
    "layer(eps=0.0)",
    "layer(eps=0.0, var=unbiased, eps_mode=outside)",
    "rms(eps=0.0)",
    "rms(eps=0.0, share=0.3)",
    "scale",
    "l2",
    "fixnorm",
    "ada(eps=0.0)",
    "detach(eps=0.0)",
    "group(groups=2, eps=0.0)",
    "batch(eps=0.0)",
    "instance(eps=0.0)",
    "power(eps=1e-30)",
]
SHIFT_INVARIANT = ["layer", "layer(eps_mode=outside)", "ada", "detach", "group", "ada_ln"]
SCALE_SENSITIVE = ["dyt", "derf", "none", "power(warmup=0)"]
SHIFT_SENSITIVE = ["rms", "scale", "l2", "fixnorm", "dyt", "derf", "none", "power"]


@pytest.mark.parametrize("call", SCALE_INVARIANT)
@search
@given(seed=seeds, factor=factors)
def test_scale_invariance(call, seed, factor):
    x = randn(2, 4, DIM, seed=seed, dtype=F64)
    close(double(call)(factor * x), double(call)(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("call", SHIFT_INVARIANT)
@search
@given(seed=seeds, shift=shifts)
def test_shift_invariance_over_features(call, seed, shift):
    x = randn(2, 4, DIM, seed=seed, dtype=F64)
    close(double(call)(x + shift), double(call)(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("call", ["batch", "instance"])
@search
@given(seed=seeds, shift=shifts)
def test_shift_invariance_over_tokens(call, seed, shift):
    x = randn(2, 4, DIM, seed=seed, dtype=F64)
    per_feature = shift * randn(DIM, seed=seed + 1, dtype=F64)
    close(double(call)(x + per_feature), double(call)(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("call", SCALE_SENSITIVE)
def test_no_scale_invariance(call):
    x = tokens(*SHAPE)
    assert (double(call)(2 * x) - double(call)(x)).abs().max() > 0.1


@pytest.mark.parametrize("call", SHIFT_SENSITIVE)
def test_no_shift_invariance(call):
    x = tokens(*SHAPE)
    assert (double(call)(x + 1) - double(call)(x)).abs().max() > 0.1


@pytest.mark.parametrize("call", [call for call in CASES if needs(call, "mask")])
@search
@given(
    seed=seeds,
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    extra=st.integers(0, 3),
    left=st.integers(0, 2),
)
def test_padding_invariance_on_either_side(call, seed, lengths, extra, left):
    """Compare sentences padded to the longest one with sentences padded further by garbage."""
    longest = max(lengths)
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    x = randn(len(lengths), longest, DIM, seed=seed, dtype=F64)
    wide = 1e3 * randn(len(lengths), left + longest + extra, DIM, seed=seed + 1, dtype=F64)
    wide_mask = torch.zeros(wide.shape[:2], dtype=torch.bool)
    wide_mask[:, left : left + longest] = mask
    wide[wide_mask] = x[mask]
    short, long = double(call), double(call)
    close(long(wide, wide_mask)[wide_mask], short(x, mask)[mask])
    close(dict(long.named_buffers()), dict(short.named_buffers()))


def test_seednorm_is_rms_whenever_alpha_or_beta_is_zero():
    x = tokens(3, DIM)
    for zero in ("alpha", "beta"):
        norm = double("seednorm")
        with torch.no_grad():
            getattr(norm, zero).zero_()
        plain = double("rms")
        plain.load_state_dict({"weight": norm.weight})
        torch.testing.assert_close(norm(x), plain(x))


def test_seednorm_at_the_start_has_a_gradient_of_beta_but_none_of_alpha():
    norm = fresh("seednorm")
    norm(tokens(5, DIM)).sin().sum().backward()
    assert norm.beta.grad.abs().sum() > 0 and not norm.alpha.grad.any()


def test_seednorm_is_not_scale_invariant():
    norm, x = double("seednorm"), 0.1 * tokens(3, DIM)
    assert not torch.allclose(norm(x), norm(2 * x), rtol=1e-2)


def test_gatednorm_starts_at_half_of_rms():
    x = tokens(3, DIM)
    torch.testing.assert_close(2 * fresh("gatednorm")(x), fresh("rms")(x))
