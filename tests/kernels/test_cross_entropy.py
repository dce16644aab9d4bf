"""Losses: torch's cross entropy in sums, and the same without holding all logits."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from addnorm.core.errors import UserError
from addnorm.kernels import cross_entropy as module
from addnorm.kernels.cross_entropy import IGNORE_INDEX, cross_entropy, linear_cross_entropy

PAD = 0


def drawn(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def asked(*shape, classes=11, seed=1, ignore=PAD):
    """Targets, some of which ask for nothing; a whole row among them."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(1, classes, shape, generator=generator)
    targets[torch.rand(shape, generator=generator) < 0.3] = ignore
    targets[-1] = ignore
    return targets


@pytest.fixture
def small_chunks(monkeypatch):
    """Three tokens at a time, so that there are several and the last is short."""
    monkeypatch.setattr(module, "CPU_CHUNK_LOGITS", 3 * 11)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("shape", [(3, 7), (21,), (2, 1, 5)])
def test_cross_entropy_is_torchs_sum_with_its_gradient(smoothing, shape):
    logits, targets = drawn(*shape, 11), asked(*shape)
    loss, nll, _, count = cross_entropy(logits, targets, smoothing=smoothing, ignore_index=PAD)
    flat = (logits.flatten(0, -2), targets.flatten())
    twin = F.cross_entropy(*flat, ignore_index=PAD, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss, twin)
    (mine,), (theirs,) = (torch.autograd.grad(each, logits) for each in (loss, twin))
    torch.testing.assert_close(mine, theirs)
    plain = F.cross_entropy(*flat, ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(nll, plain.detach())
    assert int(count) == int((targets != PAD).sum())
    assert not nll.requires_grad


def test_by_default_class_0_is_a_class_like_any_other():
    logits, labels = drawn(4, 3), torch.tensor([0, 1, 2, 0])
    loss, _, _, count = cross_entropy(logits, labels)
    assert int(count) == 4
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, reduction="sum"))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_where_nothing_is_asked_all_is_0_and_so_is_the_gradient(smoothing):
    logits, targets = drawn(2, 5, 11), torch.full((2, 5), PAD)
    loss, nll, _, count = cross_entropy(logits, targets, smoothing=smoothing, ignore_index=PAD)
    loss.backward()
    assert (loss.item(), nll.item(), count.item()) == (0.0, 0.0, 0)
    assert (logits.grad == 0).all()


def test_ignored_tokens_get_no_gradient():
    logits, targets = drawn(3, 7, 11), asked(3, 7)
    cross_entropy(logits, targets, smoothing=0.1, ignore_index=PAD)[0].backward()
    silent = (logits.grad == 0).all(-1)
    assert (silent == (targets == PAD)).all()


def test_bfloat16_logits_are_scored_in_float32():
    logits, targets = drawn(3, 7, 11, dtype=torch.bfloat16), asked(3, 7)
    loss, nll, _, _ = cross_entropy(logits, targets, smoothing=0.1, ignore_index=PAD)
    twin, twin_nll, _, _ = cross_entropy(
        logits.detach().float(), targets, smoothing=0.1, ignore_index=PAD
    )
    assert loss.dtype == nll.dtype == torch.float32
    assert (loss.item(), nll.item()) == (twin.item(), twin_nll.item())
    loss.backward()
    assert logits.grad.dtype == torch.bfloat16


def test_huge_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    loss, _, _, _ = cross_entropy(logits, torch.tensor([1]), smoothing=0.1)
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()


# Without all logits.


def both(h, table, targets, bias=None, cap=None, smoothing=0.1, scale=1.0):
    """(values, gradients) of the function and of its twin out of plain parts."""
    inputs = [each for each in (h, table, bias) if each is not None]
    loss, nll, correct, count = linear_cross_entropy(
        h, table, targets, bias=bias, cap=cap, smoothing=smoothing, ignore_index=PAD
    )
    logits = F.linear(h, table, bias)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    twin, twin_nll, twin_correct, twin_count = cross_entropy(
        logits, targets, smoothing=smoothing, ignore_index=PAD
    )
    hits = (logits.argmax(-1) == targets)[targets != PAD].sum()
    assert twin_correct == hits
    mine = torch.autograd.grad(loss * scale, inputs)
    theirs = torch.autograd.grad(twin * scale, inputs)
    return ((loss, nll, correct, count), mine), ((twin, twin_nll, hits, twin_count), theirs)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_linear_cross_entropy_is_the_composition_with_all_gradients(smoothing, bias, cap):
    h, table = drawn(3, 7, 10), drawn(11, 10, seed=5)
    shift = drawn(11, seed=6) if bias else None
    mine, theirs = both(h, table, asked(3, 7), shift, cap, smoothing, scale=0.37)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("small_chunks")
def test_in_float64_it_is_exact():
    h, table = drawn(3, 7, 10, dtype=torch.float64), drawn(11, 10, seed=5, dtype=torch.float64)
    mine, theirs = both(h, table, asked(3, 7), cap=3.0)
    torch.testing.assert_close(mine, theirs, rtol=1e-13, atol=1e-13)


@pytest.mark.usefixtures("small_chunks")
def test_where_nothing_is_asked_linear_gives_0_too():
    h, table = drawn(2, 5, 10), drawn(11, 10, seed=5)
    loss, nll, correct, count = linear_cross_entropy(
        h, table, torch.full((2, 5), PAD), smoothing=0.1, ignore_index=PAD
    )
    loss.backward()
    assert [each.item() for each in (loss, nll, correct, count)] == [0, 0, 0, 0]
    assert (h.grad == 0).all() and (table.grad == 0).all()


@pytest.mark.usefixtures("small_chunks")
def test_a_frozen_table_or_none_to_train_is_no_trouble():
    h, table, targets = drawn(3, 7, 10), drawn(11, 10, seed=5), asked(3, 7)
    frozen = linear_cross_entropy(h, table.detach(), targets, ignore_index=PAD)[0]
    (grad,) = torch.autograd.grad(frozen, h)
    (mine, (wanted, _)), _ = both(h, table, targets, smoothing=0.0)
    torch.testing.assert_close(grad, wanted)
    with torch.no_grad():
        free = linear_cross_entropy(h, table, targets, ignore_index=PAD)
    assert not free[0].requires_grad
    assert [each.item() for each in free] == [each.item() for each in mine]


@pytest.mark.usefixtures("small_chunks")
def test_one_table_for_embedding_and_head_gets_both_gradients():
    table, targets = nn.Parameter(drawn(11, 10, seed=5).detach()), asked(3, 7)
    h = F.embedding(torch.arange(21).view(3, 7) % 11, table)
    linear_cross_entropy(h, table, targets, ignore_index=PAD)[0].backward()
    mine, table.grad = table.grad, None
    h = F.embedding(torch.arange(21).view(3, 7) % 11, table)
    cross_entropy(h @ table.T, targets, ignore_index=PAD)[0].backward()
    torch.testing.assert_close(mine, table.grad)


@pytest.mark.usefixtures("small_chunks")
def test_under_autocast_products_are_in_bfloat16_and_sums_in_float32():
    h, table, targets = drawn(3, 7, 10), drawn(11, 10, seed=5), asked(3, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, nll, _, _ = linear_cross_entropy(h, table, targets, smoothing=0.1, ignore_index=PAD)
        logits = F.linear(h, table)
    assert logits.dtype == torch.bfloat16
    twin, twin_nll, _, _ = cross_entropy(logits, targets, smoothing=0.1, ignore_index=PAD)
    torch.testing.assert_close((loss, nll), (twin, twin_nll))
    mine, theirs = (torch.autograd.grad(each, (h, table)) for each in (loss, twin))
    assert [grad.dtype for grad in mine] == [torch.float32, torch.float32]
    torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)


def test_a_second_backward_and_a_larger_chunk_change_nothing(monkeypatch):
    h, table, targets = drawn(3, 7, 10), drawn(11, 10, seed=5), asked(3, 7)
    loss = linear_cross_entropy(h, table, targets, ignore_index=PAD)[0]
    first = torch.autograd.grad(loss, (h, table), retain_graph=True)
    second = torch.autograd.grad(loss, (h, table))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    monkeypatch.setattr(module, "CPU_CHUNK_LOGITS", 1)  # a token at a time at least
    single = torch.autograd.grad(
        linear_cross_entropy(h, table, targets, ignore_index=PAD)[0], (h, table)
    )
    torch.testing.assert_close(first, single)


@pytest.mark.parametrize("function", [cross_entropy, linear_cross_entropy])
def test_what_does_not_fit_is_refused(function):
    rest = () if function is cross_entropy else (drawn(11, 10),)
    with pytest.raises(UserError, match=r"targets: expected shape \(3, 7\), .* got \(3, 6\)"):
        function(drawn(3, 7, 10), *rest, asked(3, 6))
    with pytest.raises(
        UserError, match=r"smoothing: expected a number from 0 to below 1, got 1\.0"
    ):
        function(drawn(3, 7, 10), *rest, asked(3, 7), smoothing=1.0)


def test_a_table_of_another_width_is_refused():
    with pytest.raises(UserError, match="table: expected 10 features as in h, got 9"):
        linear_cross_entropy(drawn(3, 7, 10), drawn(11, 9), asked(3, 7))


def test_the_target_that_asks_for_nothing_is_torchs():
    assert torch.nn.CrossEntropyLoss().ignore_index == IGNORE_INDEX
