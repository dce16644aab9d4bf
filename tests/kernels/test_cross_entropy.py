"""Summed cross entropy, and its fusion with the output projection, against torch."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from addnorm.core.errors import UserError
from addnorm.kernels import cross_entropy as module
from addnorm.kernels.cross_entropy import IGNORE_INDEX, cross_entropy, linear_cross_entropy

PAD = 0


def randn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def random_targets(*shape, classes=11, seed=1, ignore=PAD):
    """Return random targets; some are ignored, including the whole last row."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(1, classes, shape, generator=generator)
    targets[torch.rand(shape, generator=generator) < 0.3] = ignore
    targets[-1] = ignore
    return targets


@pytest.fixture
def small_chunks(monkeypatch):
    """Use chunks of three tokens, so that there are several and the last is shorter."""
    monkeypatch.setattr(module, "CPU_CHUNK_LOGITS", 3 * 11)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("shape", [(3, 7), (21,), (2, 1, 5)])
def test_cross_entropy_matches_torch_with_gradient(smoothing, shape):
    logits, targets = randn(*shape, 11), random_targets(*shape)
    loss, nll, _, count = cross_entropy(logits, targets, smoothing=smoothing, ignore_index=PAD)
    flat = (logits.flatten(0, -2), targets.flatten())
    expected = F.cross_entropy(*flat, ignore_index=PAD, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected)
    (grad,), (expected_grad,) = (torch.autograd.grad(each, logits) for each in (loss, expected))
    torch.testing.assert_close(grad, expected_grad)
    plain = F.cross_entropy(*flat, ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(nll, plain.detach())
    assert int(count) == int((targets != PAD).sum())
    assert not nll.requires_grad


def test_class_0_is_not_ignored_by_default():
    logits, labels = randn(4, 3), torch.tensor([0, 1, 2, 0])
    loss, _, _, count = cross_entropy(logits, labels)
    assert int(count) == 4
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, reduction="sum"))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_all_targets_ignored_gives_zero_loss_and_gradient(smoothing):
    logits, targets = randn(2, 5, 11), torch.full((2, 5), PAD)
    loss, nll, _, count = cross_entropy(logits, targets, smoothing=smoothing, ignore_index=PAD)
    loss.backward()
    assert (loss.item(), nll.item(), count.item()) == (0.0, 0.0, 0)
    assert (logits.grad == 0).all()


def test_ignored_tokens_have_zero_gradient():
    logits, targets = randn(3, 7, 11), random_targets(3, 7)
    cross_entropy(logits, targets, smoothing=0.1, ignore_index=PAD)[0].backward()
    zero_grad = (logits.grad == 0).all(-1)
    assert (zero_grad == (targets == PAD)).all()


def test_bfloat16_logits_are_scored_in_float32():
    logits, targets = randn(3, 7, 11, dtype=torch.bfloat16), random_targets(3, 7)
    loss, nll, _, _ = cross_entropy(logits, targets, smoothing=0.1, ignore_index=PAD)
    expected, expected_nll, _, _ = cross_entropy(
        logits.detach().float(), targets, smoothing=0.1, ignore_index=PAD
    )
    assert loss.dtype == nll.dtype == torch.float32
    assert (loss.item(), nll.item()) == (expected.item(), expected_nll.item())
    loss.backward()
    assert logits.grad.dtype == torch.bfloat16


def test_huge_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss, _, _, _ = cross_entropy(logits, torch.tensor([1]), smoothing=0.1)
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()


# Fused with the output projection.


def run_both(h, table, targets, bias=None, cap=None, smoothing=0.1, scale=1.0):
    """Return (values, gradients) of the fused function and of the composition of plain parts."""
    inputs = [each for each in (h, table, bias) if each is not None]
    loss, nll, correct, count = linear_cross_entropy(
        h, table, targets, bias=bias, cap=cap, smoothing=smoothing, ignore_index=PAD
    )
    logits = F.linear(h, table, bias)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    expected, expected_nll, expected_correct, expected_count = cross_entropy(
        logits, targets, smoothing=smoothing, ignore_index=PAD
    )
    num_hits = (logits.argmax(-1) == targets)[targets != PAD].sum()
    assert expected_correct == num_hits
    grads = torch.autograd.grad(loss * scale, inputs)
    expected_grads = torch.autograd.grad(expected * scale, inputs)
    expected_values = (expected, expected_nll, num_hits, expected_count)
    return ((loss, nll, correct, count), grads), (expected_values, expected_grads)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_linear_cross_entropy_matches_composition_with_gradients(smoothing, bias, cap):
    h, table = randn(3, 7, 10), randn(11, 10, seed=5)
    shift = randn(11, seed=6) if bias else None
    actual, expected = run_both(h, table, random_targets(3, 7), shift, cap, smoothing, scale=0.37)
    torch.testing.assert_close(actual, expected)


@pytest.mark.usefixtures("small_chunks")
def test_linear_cross_entropy_is_exact_in_float64():
    h, table = randn(3, 7, 10, dtype=torch.float64), randn(11, 10, seed=5, dtype=torch.float64)
    actual, expected = run_both(h, table, random_targets(3, 7), cap=3.0)
    torch.testing.assert_close(actual, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.usefixtures("small_chunks")
def test_linear_with_all_targets_ignored_gives_zero():
    h, table = randn(2, 5, 10), randn(11, 10, seed=5)
    loss, nll, correct, count = linear_cross_entropy(
        h, table, torch.full((2, 5), PAD), smoothing=0.1, ignore_index=PAD
    )
    loss.backward()
    assert [each.item() for each in (loss, nll, correct, count)] == [0, 0, 0, 0]
    assert (h.grad == 0).all() and (table.grad == 0).all()


@pytest.mark.usefixtures("small_chunks")
def test_frozen_table_and_no_grad():
    h, table, targets = randn(3, 7, 10), randn(11, 10, seed=5), random_targets(3, 7)
    frozen = linear_cross_entropy(h, table.detach(), targets, ignore_index=PAD)[0]
    (grad,) = torch.autograd.grad(frozen, h)
    (actual, (expected_grad, _)), _ = run_both(h, table, targets, smoothing=0.0)
    torch.testing.assert_close(grad, expected_grad)
    with torch.no_grad():
        without_grad = linear_cross_entropy(h, table, targets, ignore_index=PAD)
    assert not without_grad[0].requires_grad
    assert [each.item() for each in without_grad] == [each.item() for each in actual]


@pytest.mark.usefixtures("small_chunks")
def test_tied_table_accumulates_both_gradients():
    table, targets = nn.Parameter(randn(11, 10, seed=5).detach()), random_targets(3, 7)
    h = F.embedding(torch.arange(21).view(3, 7) % 11, table)
    linear_cross_entropy(h, table, targets, ignore_index=PAD)[0].backward()
    actual, table.grad = table.grad, None
    h = F.embedding(torch.arange(21).view(3, 7) % 11, table)
    cross_entropy(h @ table.T, targets, ignore_index=PAD)[0].backward()
    torch.testing.assert_close(actual, table.grad)


@pytest.mark.usefixtures("small_chunks")
def test_autocast_multiplies_in_bfloat16_and_sums_in_float32():
    h, table, targets = randn(3, 7, 10), randn(11, 10, seed=5), random_targets(3, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, nll, _, _ = linear_cross_entropy(h, table, targets, smoothing=0.1, ignore_index=PAD)
        logits = F.linear(h, table)
    assert logits.dtype == torch.bfloat16
    expected, expected_nll, _, _ = cross_entropy(logits, targets, smoothing=0.1, ignore_index=PAD)
    torch.testing.assert_close((loss, nll), (expected, expected_nll))
    grads, expected_grads = (torch.autograd.grad(each, (h, table)) for each in (loss, expected))
    assert [grad.dtype for grad in grads] == [torch.float32, torch.float32]
    torch.testing.assert_close(grads, expected_grads, rtol=2e-2, atol=2e-2)


def test_second_backward_and_chunk_size_do_not_change_gradients(monkeypatch):
    h, table, targets = randn(3, 7, 10), randn(11, 10, seed=5), random_targets(3, 7)
    loss = linear_cross_entropy(h, table, targets, ignore_index=PAD)[0]
    first = torch.autograd.grad(loss, (h, table), retain_graph=True)
    second = torch.autograd.grad(loss, (h, table))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    monkeypatch.setattr(module, "CPU_CHUNK_LOGITS", 1)  # one token per chunk
    single = torch.autograd.grad(
        linear_cross_entropy(h, table, targets, ignore_index=PAD)[0], (h, table)
    )
    torch.testing.assert_close(first, single)


@pytest.mark.parametrize("function", [cross_entropy, linear_cross_entropy])
def test_invalid_arguments_raise(function):
    rest = () if function is cross_entropy else (randn(11, 10),)
    with pytest.raises(UserError, match=r"targets: expected shape \(3, 7\), .* got \(3, 6\)"):
        function(randn(3, 7, 10), *rest, random_targets(3, 6))
    with pytest.raises(
        UserError, match=r"smoothing: expected a number from 0 to below 1, got 1\.0"
    ):
        function(randn(3, 7, 10), *rest, random_targets(3, 7), smoothing=1.0)


def test_table_of_wrong_width_raises():
    with pytest.raises(UserError, match="table: expected 10 features as in h, got 9"):
        linear_cross_entropy(randn(3, 7, 10), randn(11, 9), random_targets(3, 7))


def test_ignore_index_equals_torch_default():
    assert torch.nn.CrossEntropyLoss().ignore_index == IGNORE_INDEX


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.usefixtures("small_chunks")
def test_ignored_targets_that_the_host_does_not_know_count_as_zero(monkeypatch, smoothing):
    h, table, bias = randn(3, 7, 5), randn(11, 5, seed=2), randn(11, seed=3)
    targets, results = random_targets(3, 7), []
    for recall in (module.recall, lambda targets: None):
        monkeypatch.setattr(module, "recall", recall)
        loss, *sums = linear_cross_entropy(
            h, table, targets, bias=bias, smoothing=smoothing, ignore_index=PAD
        )
        results.append([loss, *sums, *torch.autograd.grad(loss, (h, table, bias))])
    for known, unknown in zip(*results, strict=True):
        torch.testing.assert_close(unknown, known)
