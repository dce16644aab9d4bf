"""Row-wise cross entropy, native and in plain torch, against float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.kernels import cross_entropy_rows as module
from addnorm.kernels import library
from addnorm.kernels.cross_entropy_rows import cross_entropy_rows

LEVELS = ("off", *library.list_levels())


@pytest.fixture(autouse=True)
def use_native_for_all_sizes(monkeypatch):
    monkeypatch.setattr(module, "MIN_NATIVE_LOGITS", 0)


def random_logits(rows, classes, seed=0, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (rows,), generator=generator)
    return scale * torch.randn(rows, classes, generator=generator), targets


def reference_rows(logits, targets, smoothing):
    """Return nll, smoothing term, correct predictions and gradient, computed in float64."""
    precise = logits.double().requires_grad_()
    loss = F.cross_entropy(precise, targets, reduction="sum", label_smoothing=smoothing)
    nll = F.cross_entropy(precise, targets, reduction="sum")
    smoothing_nll = -precise.log_softmax(-1).mean(-1).sum() if smoothing else nll.new_zeros(())
    correct = (precise.gather(1, targets[:, None])[:, 0] >= precise.amax(-1)).sum()
    (grad,) = torch.autograd.grad(loss, precise)
    return nll.detach(), smoothing_nll.detach(), correct, grad


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9),
    classes=st.integers(1, 131),
    seed=st.integers(0, 99),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 40.0, 1e4]),
    smoothing=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_matches_reference(level, rows, classes, seed, scale, smoothing):
    logits, targets = random_logits(rows, classes, seed, scale)
    nll, smoothing_nll, correct, grad = reference_rows(logits, targets, smoothing)
    with library.use_level(level):
        actual = cross_entropy_rows(logits.clone(), targets, smoothing=smoothing)
    torch.testing.assert_close(actual.nll.double(), nll, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual.smoothing_nll.double(), smoothing_nll, rtol=1e-5, atol=1e-5)
    assert int(actual.correct) == int(correct)
    torch.testing.assert_close(actual.grad.double(), grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("level", LEVELS)
def test_precision_with_hundred_thousand_classes(level):
    logits, targets = random_logits(3, 100_003, scale=1.0)
    nll, smoothing_nll, _, grad = reference_rows(logits, targets, 0.1)
    with library.use_level(level):
        actual = cross_entropy_rows(logits.clone(), targets, smoothing=0.1)
    torch.testing.assert_close(actual.nll.double(), nll, rtol=1e-6, atol=0)
    torch.testing.assert_close(actual.smoothing_nll.double(), smoothing_nll, rtol=1e-6, atol=0)
    torch.testing.assert_close(actual.grad.double(), grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("level", LEVELS)
def test_non_finite_values_stay_in_their_row(level):
    logits, targets = random_logits(6, 37)
    logits[0, 5], logits[1, 7], logits[2] = torch.nan, torch.inf, -torch.inf
    targets[0] = 3
    with library.use_level(level):
        actual = cross_entropy_rows(logits.clone(), targets)
    assert actual.nll.isnan()
    assert actual.grad[:3].isnan().any(-1).all()
    assert actual.grad[3:].isfinite().all()


@pytest.mark.parametrize("level", LEVELS)
def test_class_with_minus_infinite_logit_has_zero_gradient(level):
    logits, targets = random_logits(4, 19)
    logits[:, 11] = -torch.inf
    targets[:] = 2
    with library.use_level(level):
        actual = cross_entropy_rows(logits.clone(), targets)
    assert (actual.grad[:, 11] == 0).all()
    torch.testing.assert_close(
        actual.nll.double(), F.cross_entropy(logits.double(), targets, reduction="sum")
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("target", [-1, 7])
def test_target_out_of_range_raises(level, target):
    logits, targets = random_logits(2, 7)
    targets[1] = target
    with library.use_level(level), pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        cross_entropy_rows(logits, targets)


@pytest.mark.parametrize("level", LEVELS)
def test_empty_input(level):
    with library.use_level(level):
        actual = cross_entropy_rows(
            torch.empty(0, 5), torch.empty(0, dtype=torch.long), smoothing=0.1
        )
    assert [float(each) for each in actual[:3]] == [0, 0, 0]
    assert actual.grad.shape == (0, 5)


@pytest.mark.parametrize("level", LEVELS)
def test_logits_are_unchanged_without_gradient(level):
    logits, targets = random_logits(5, 33)
    before = logits.clone()
    with library.use_level(level):
        actual = cross_entropy_rows(logits, targets, smoothing=0.1, requires_grad=False)
        expected = cross_entropy_rows(before.clone(), targets, smoothing=0.1)
    assert actual.grad is None
    assert torch.equal(logits, before)
    assert [float(each) for each in actual[:3]] == [float(each) for each in expected[:3]]


@pytest.mark.parametrize("level", LEVELS)
def test_unaligned_and_strided_inputs(level):
    logits, targets = random_logits(5, 33)
    buffer = torch.zeros(5 * 33 + 1)
    buffer[1:] = logits.flatten()
    strided_targets = torch.stack((targets, targets), -1)[:, 0]
    with library.use_level(level):
        expected = cross_entropy_rows(logits.clone(), targets)
        shifted = cross_entropy_rows(buffer[1:].view(5, 33), strided_targets)
        transposed = cross_entropy_rows(logits.T.contiguous().T, targets)
    assert torch.equal(shifted.grad, expected.grad)
    torch.testing.assert_close(transposed.grad, expected.grad)


@pytest.mark.skipif(len(LEVELS) == 1, reason="the native library was not built")
def test_results_do_not_depend_on_thread_count():
    logits, targets = random_logits(67, 129)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(cross_entropy_rows(logits.clone(), targets, smoothing=0.1))
    finally:
        torch.set_num_threads(before)
    for each in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(each, results[0], strict=True))


@pytest.mark.parametrize("level", LEVELS)
def test_logsumexp_matches_torch(level):
    logits, _ = random_logits(7, 1001, scale=20.0)
    logits[3, 5] = -torch.inf
    before = logits.clone()
    with library.use_level(level):
        torch.testing.assert_close(module.logsumexp(logits), logits.logsumexp(-1))
        assert torch.equal(logits, before)
        (grad,) = torch.autograd.grad(module.logsumexp(logits.requires_grad_()).sum(), logits)
    torch.testing.assert_close(grad, before.softmax(-1))
