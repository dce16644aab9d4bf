"""Cross entropy as sums over what is asked; whoever knows the count of all processes divides."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from addnorm.core.errors import UserError
from addnorm.kernels.cross_entropy_rows import cross_entropy_rows
from addnorm.kernels.linear import linear

IGNORE_INDEX = -100
"""The target that asks for nothing, as in torch."""

# Logits that are made at once. On a CPU they stay in the cache between the products that make them
# and use them; elsewhere a product must be large to be fast.
CPU_CHUNK_LOGITS, GPU_CHUNK_LOGITS = 2**21, 2**24


class LossSums(NamedTuple):
    """Sums over what is asked; scalars."""

    loss: Tensor
    """What is minimised; the only one with a gradient."""
    nll: Tensor
    """Negative log-likelihood in nats, without smoothing."""
    correct: Tensor
    """Targets that no other class beats."""
    num_targets: Tensor
    """Targets."""


def cross_entropy(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, ignore_index: int = IGNORE_INDEX
) -> LossSums:
    """Sums over the targets that are not `ignore`; only the loss has a gradient.

    nll  = sum of -log p[target],   p = softmax(logits) in float32 or better
    loss = (1 - smoothing) * nll + smoothing * sum of the mean of -log p over all classes

    logits: (..., classes); targets: (...). Where nothing is asked, all is 0 and so are the
    gradients. torch's F.cross_entropy with reduction="sum" computes the same loss.

    Szegedy et al., Rethinking the Inception Architecture for Computer Vision, 2015, arXiv
    1512.00567, section 7.
    """
    _check(logits, targets, smoothing)
    logp = _to_float32(logits).flatten(0, -2).log_softmax(-1)
    targets = targets.flatten()
    nll = F.nll_loss(logp, targets, ignore_index=ignore_index, reduction="sum")
    asked = targets != ignore_index
    loss = nll
    if smoothing:
        spread = -logp.mean(-1).masked_fill(~asked, 0.0).sum()
        loss = (1 - smoothing) * nll + smoothing * spread
    with torch.no_grad():
        found = logp.gather(1, targets.masked_fill(~asked, 0)[:, None])
        correct = ((found >= logp.amax(-1, keepdim=True))[:, 0] & asked).sum()
    return LossSums(loss, nll.detach(), correct, asked.sum())


def linear_cross_entropy(
    h: Tensor,
    table: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    cap: float | None = None,
    smoothing: float = 0.0,
    ignore_index: int = IGNORE_INDEX,
) -> LossSums:
    """`cross_entropy(cap(h @ table.T + bias), targets)`, without ever holding all logits.

    h: (..., dim); table: (classes, dim); bias: (classes); cap(a) = c * tanh(a / c) where c is given

    A few tokens at a time: their logits, the loss, and at once the gradients, which wait for the
    backward; what is ignored is left out. That saves memory and, where the logits then stay in the
    cache, time. Under autocast products are made in its type. The gradients have none
    themselves.
    """
    _check(h, targets, smoothing, classes="dim")
    if h.shape[-1] != table.shape[-1]:
        raise UserError(
            f"h has {h.shape[-1]} features and the table {table.shape[-1]}; make them equal"
        )
    h, targets = h.flatten(0, -2), targets.flatten()
    asked = targets != ignore_index
    count = asked.sum()
    if int(count) < len(targets):
        h, targets = h[asked], targets[asked]
    kind, weights = h.device.type, [each for each in (h, table, bias) if each is not None]
    wanted = torch.is_grad_enabled() and any(each.requires_grad for each in weights)
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else h.dtype
    with torch.autocast(kind, enabled=False):
        how = _LossOptions(dtype, cap, smoothing, wanted)
        loss, nll, correct = _ChunkedCrossEntropy.apply(h, table, bias, targets, how)  # type: ignore[no-untyped-call]
    return LossSums(loss, nll, correct, count)


class _LossOptions(NamedTuple):
    """All that is no tensor."""

    dtype: torch.dtype
    """Of the products."""
    cap: float | None
    smoothing: float
    requires_grad: bool
    """Whether there will be a backward."""


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Gradients are made in the forward, where the logits are at hand."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        options: _LossOptions,
    ) -> tuple[Tensor, Tensor, Tensor]:
        classes, (dtype, cap, smoothing, wanted) = len(table), options
        size = max(1, (CPU_CHUNK_LOGITS if h.device.type == "cpu" else GPU_CHUNK_LOGITS) // classes)
        near, matrix = h.to(dtype), table.to(dtype)
        shift = None if bias is None else bias.to(dtype)
        precise = torch.promote_types(dtype, torch.float32)
        nll, spread = (torch.zeros((), dtype=precise, device=h.device) for _ in range(2))
        correct = torch.zeros((), dtype=torch.int64, device=h.device)
        grads = [
            torch.zeros_like(each, dtype=precise)
            if wanted and needed and each is not None
            else None
            for each, needed in zip((h, table, bias), ctx.needs_input_grad[:3], strict=True)
        ]
        for start in range(0, len(h), size):
            part = near[start : start + size]
            logits = linear(part, matrix, shift).to(precise)  # (tokens, classes)
            slope = None
            if cap is not None:
                logits = (logits / cap).tanh_()
                slope, logits = 1 - logits.square(), logits.mul_(cap)
            target = targets[start : start + size]
            found = cross_entropy_rows(logits, target, smoothing=smoothing, requires_grad=wanted)
            nll += found.nll
            spread += found.smoothing_nll
            correct += found.correct
            if found.grad is not None:
                grad = found.grad if slope is None else found.grad.mul_(slope)
                _add_gradients(grads, grad, part, matrix, start)
        ctx.save_for_backward(*grads)
        ctx.types = [None if each is None else each.dtype for each in (h, table, bias)]
        ctx.mark_non_differentiable(nll, correct)
        loss = (1 - smoothing) * nll + smoothing * spread if smoothing else nll.clone()
        return loss, nll, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        ours = zip(ctx.saved_tensors, ctx.types, ctx.needs_input_grad[:3], strict=True)
        return (
            *((grad * grad_output).to(dtype) if needed else None for grad, dtype, needed in ours),
            None,
            None,
        )


def _add_gradients(
    grads: list[Tensor | None], grad: Tensor, chunk: Tensor, matrix: Tensor, start: int
) -> None:
    """Add what the logits of a few tokens tell those of h, table and bias that want to know."""
    for_h, for_table, for_bias = grads
    if for_bias is not None:
        for_bias += grad.sum(0)
    grad = grad.to(matrix.dtype)
    if for_h is not None:
        for_h[start : start + len(chunk)] = grad @ matrix
    if for_table is not None and grad.dtype == for_table.dtype:
        for_table.addmm_(grad.T, chunk)
    elif for_table is not None:
        for_table += grad.T @ chunk


def _to_float32(logits: Tensor) -> Tensor:
    """In float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _check(scores: Tensor, targets: Tensor, smoothing: float, classes: str = "classes") -> None:
    if scores.ndim < 1 or scores.shape[:-1] != targets.shape:
        raise UserError(
            f"targets have shape {tuple(targets.shape)}, wanted that of what is scored without its "
            f"last axis, {tuple(scores.shape[:-1])} of (..., {classes})"
        )
    if not 0 <= smoothing < 1:
        raise UserError(f"smoothing is a share from 0 to below 1, got {smoothing!r}")
