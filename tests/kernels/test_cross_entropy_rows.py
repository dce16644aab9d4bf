"""Softmax and its losses, natively and in plain torch, against float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.kernels import cross_entropy_rows as module
from addnorm.kernels import library
from addnorm.kernels.cross_entropy_rows import cross_entropy_rows

LEVELS = ("off", *library.levels())


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    monkeypatch.setattr(module, "MIN_NATIVE_LOGITS", 0)


def drawn(rows, classes, seed=0, scale=3.0):
    chance = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (rows,), generator=chance)
    return scale * torch.randn(rows, classes, generator=chance), targets


def by_torch(logits, targets, smoothing):
    """The definition in float64: nll, spread, correct, gradient."""
    precise = logits.double().requires_grad_()
    loss = F.cross_entropy(precise, targets, reduction="sum", label_smoothing=smoothing)
    nll = F.cross_entropy(precise, targets, reduction="sum")
    spread = -precise.log_softmax(-1).mean(-1).sum() if smoothing else nll.new_zeros(())
    correct = (precise.gather(1, targets[:, None])[:, 0] >= precise.amax(-1)).sum()
    (grad,) = torch.autograd.grad(loss, precise)
    return nll.detach(), spread.detach(), correct, grad


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9),
    classes=st.integers(1, 131),
    seed=st.integers(0, 99),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 40.0, 1e4]),
    smoothing=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_every_number_is_that_of_the_definition(level, rows, classes, seed, scale, smoothing):
    logits, targets = drawn(rows, classes, seed, scale)
    nll, spread, correct, grad = by_torch(logits, targets, smoothing)
    with library.use_level(level):
        found = cross_entropy_rows(logits.clone(), targets, smoothing=smoothing)
    torch.testing.assert_close(found.nll.double(), nll, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.smoothing_nll.double(), spread, rtol=1e-5, atol=1e-5)
    assert int(found.correct) == int(correct)
    torch.testing.assert_close(found.grad.double(), grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_a_hundred_thousand_classes_lose_no_digits(level):
    logits, targets = drawn(3, 100_003, scale=1.0)
    nll, spread, _, grad = by_torch(logits, targets, 0.1)
    with library.use_level(level):
        found = cross_entropy_rows(logits.clone(), targets, smoothing=0.1)
    torch.testing.assert_close(found.nll.double(), nll, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.smoothing_nll.double(), spread, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.grad.double(), grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_no_number_stays_none_and_in_its_row(level):
    logits, targets = drawn(6, 37)
    logits[0, 5], logits[1, 7], logits[2] = torch.nan, torch.inf, -torch.inf
    targets[0] = 3
    with library.use_level(level):
        found = cross_entropy_rows(logits.clone(), targets)
    assert found.nll.isnan()
    assert found.grad[:3].isnan().any(-1).all()
    assert found.grad[3:].isfinite().all()


@pytest.mark.parametrize("level", LEVELS)
def test_a_class_that_is_ruled_out_has_no_share(level):
    logits, targets = drawn(4, 19)
    logits[:, 11] = -torch.inf
    targets[:] = 2
    with library.use_level(level):
        found = cross_entropy_rows(logits.clone(), targets)
    assert (found.grad[:, 11] == 0).all()
    torch.testing.assert_close(
        found.nll.double(), F.cross_entropy(logits.double(), targets, reduction="sum")
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("target", [-1, 7])
def test_a_target_that_is_no_class_is_refused(level, target):
    logits, targets = drawn(2, 7)
    targets[1] = target
    with library.use_level(level), pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        cross_entropy_rows(logits, targets)


@pytest.mark.parametrize("level", LEVELS)
def test_no_rows_are_no_trouble(level):
    with library.use_level(level):
        found = cross_entropy_rows(
            torch.empty(0, 5), torch.empty(0, dtype=torch.long), smoothing=0.1
        )
    assert [float(each) for each in found[:3]] == [0, 0, 0]
    assert found.grad.shape == (0, 5)


@pytest.mark.parametrize("level", LEVELS)
def test_without_gradient_the_logits_are_left_alone(level):
    logits, targets = drawn(5, 33)
    before = logits.clone()
    with library.use_level(level):
        found = cross_entropy_rows(logits, targets, smoothing=0.1, requires_grad=False)
        twin = cross_entropy_rows(before.clone(), targets, smoothing=0.1)
    assert found.grad is None
    assert torch.equal(logits, before)
    assert [float(each) for each in found[:3]] == [float(each) for each in twin[:3]]


@pytest.mark.parametrize("level", LEVELS)
def test_any_address_and_any_stride_will_do(level):
    logits, targets = drawn(5, 33)
    room = torch.zeros(5 * 33 + 1)
    room[1:] = logits.flatten()
    apart = torch.stack((targets, targets), -1)[:, 0]
    with library.use_level(level):
        twin = cross_entropy_rows(logits.clone(), targets)
        shifted = cross_entropy_rows(room[1:].view(5, 33), apart)
        turned = cross_entropy_rows(logits.T.contiguous().T, targets)
    assert torch.equal(shifted.grad, twin.grad)
    torch.testing.assert_close(turned.grad, twin.grad)


@pytest.mark.skipif(len(LEVELS) == 1, reason="the native library was not built")
def test_threads_change_no_number():
    logits, targets = drawn(67, 129)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(cross_entropy_rows(logits.clone(), targets, smoothing=0.1))
    finally:
        torch.set_num_threads(before)
    for each in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(each, found[0], strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_logsumexp_is_torchs(level):
    logits, _ = drawn(7, 1001, scale=20.0)
    logits[3, 5] = -torch.inf
    before = logits.clone()
    with library.use_level(level):
        torch.testing.assert_close(module.logsumexp(logits), logits.logsumexp(-1))
        assert torch.equal(logits, before)
        (grad,) = torch.autograd.grad(module.logsumexp(logits.requires_grad_()).sum(), logits)
    torch.testing.assert_close(grad, before.softmax(-1))
