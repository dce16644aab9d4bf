"""Cross entropy as sums over targets; the caller divides by the number of targets.

Sums of several batches or processes can be added, means cannot. `cross_entropy` takes logits.
`linear_cross_entropy` takes the input of the output layer and never holds all logits: it processes
a chunk of tokens at a time, and computes the loss and the gradients of that chunk while its logits
are in the cache. The gradients wait for the backward, which only multiplies them by the incoming
one.

    chunk of h -> logits -> loss, gradient of the logits -> gradients of h, table and bias

>>> h, table = torch.randn(5, 4), torch.randn(9, 4)
>>> sums = linear_cross_entropy(h, table, torch.tensor([0, 3, -100, 8, 1]))
>>> int(sums.num_targets)
4
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from addnorm.core.errors import UserError
from addnorm.kernels.cross_entropy_rows import cross_entropy_rows
from addnorm.kernels.device_dtypes import autocast_dtype, has_autocast
from addnorm.kernels.dry_run import is_dry_run
from addnorm.kernels.host_copies import recall, to_device
from addnorm.kernels.inputs import check_tensor, describe_value
from addnorm.kernels.linear import linear

IGNORE_INDEX = -100
"""Target that is skipped, as in torch."""

CPU_CHUNK_LOGITS, GPU_CHUNK_LOGITS = 2**21, 2**24
"""Logits of a chunk. On a CPU they must stay in the cache between the products that write and read
them; on a GPU a product must be large to be fast."""


class LossSums(NamedTuple):
    """Sums over the targets that are not ignored; scalars."""

    loss: Tensor
    """Training loss, with smoothing; the only sum with a gradient."""
    nll: Tensor
    """Negative log-likelihood in nats, without smoothing."""
    correct: Tensor
    """Number of targets with the largest logit, ties included."""
    num_targets: Tensor


def cross_entropy(
    logits: Tensor, targets: Tensor, *, smoothing: float = 0.0, ignore_index: int = IGNORE_INDEX
) -> LossSums:
    """Return sums over the targets that are not `ignore_index`.

    nll  = sum of -log p[target],   p = softmax(logits) in float32 or better
    loss = (1 - smoothing) * nll + smoothing * sum of the mean of -log p over all classes

    Without targets, all sums and gradients are 0. The loss equals that of torch's F.cross_entropy
    with reduction="sum".

    Args:
        logits: (..., classes)
        targets: (...) class indices
        smoothing: label smoothing, from 0 to below 1
        ignore_index: target that is skipped

    Szegedy et al., Rethinking the Inception Architecture for Computer Vision, 2015, arXiv
    1512.00567, section 7.
    """
    _check(logits, targets, smoothing)
    logp = _to_float32(logits).flatten(0, -2).log_softmax(-1)
    targets = targets.flatten()
    nll = F.nll_loss(logp, targets, ignore_index=ignore_index, reduction="sum")
    counted = targets != ignore_index
    loss = nll
    if smoothing:
        smoothing_nll = -logp.mean(-1).masked_fill(~counted, 0.0).sum()
        loss = (1 - smoothing) * nll + smoothing * smoothing_nll
    with torch.no_grad():
        target_logp = logp.gather(1, targets.masked_fill(~counted, 0)[:, None])
        correct = ((target_logp >= logp.amax(-1, keepdim=True))[:, 0] & counted).sum()
    return LossSums(loss, nll.detach(), correct, counted.sum())


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
    """Compute `cross_entropy(cap(h @ table.T + bias), targets)` chunk by chunk.

    Ignored targets are left out before the first product, where the host knows them. Under
    autocast the products are in its dtype. The loss can be differentiated once.

    Args:
        h: (..., dim) input of the output layer
        table: (classes, dim) weights of the output layer
        targets: (...) class indices
        bias: (classes)
        cap: c in cap(a) = c * tanh(a / c); None for no cap
        smoothing: label smoothing, from 0 to below 1
        ignore_index: target that is skipped
    """
    _check(h, targets, smoothing, classes="dim")
    if h.shape[-1] != table.shape[-1]:
        raise UserError(f"table: expected {h.shape[-1]} features as in h, got {table.shape[-1]}")
    device, inputs = h.device.type, (h, table, bias)
    dtype = autocast_dtype(device) or h.dtype
    needs_grad = [
        torch.is_grad_enabled() and each is not None and each.requires_grad for each in inputs
    ]
    options = _LossOptions(ignore_index, dtype, cap, smoothing, needs_grad)
    with torch.autocast(device, enabled=False) if has_autocast(device) else nullcontext():
        if torch.compiler.is_compiling():
            loss, nll, correct, count, *_ = torch.ops.addnorm.linear_cross_entropy(
                h, table, bias, targets, *options
            )
        else:
            loss, nll, correct, count = _ChunkedCrossEntropy.apply(h, table, bias, targets, options)  # type: ignore[no-untyped-call]
    return LossSums(loss, nll, correct, count)


def chunk_rows(classes: int, device: str) -> int:
    """Return the number of tokens of a chunk."""
    return max(1, (CPU_CHUNK_LOGITS if device == "cpu" else GPU_CHUNK_LOGITS) // classes)


class _LossOptions(NamedTuple):
    ignore_index: int
    dtype: torch.dtype
    """Dtype of the products."""
    cap: float | None
    smoothing: float
    needs_grad: list[bool]
    """Whether h, table and bias need a gradient."""


def _compute_chunks(
    h: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, options: _LossOptions
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor | None]]:
    """Return loss, nll, correct, count and the gradients of h, table and bias.

    Ignored targets are left out where the host knows them; on another device, which it would have
    to wait for, they run along and count as 0.
    """
    ignore_index, dtype, cap, smoothing, needs_grad = options
    rows, flat = h.flatten(0, -2), targets.flatten()
    counted = flat != ignore_index
    count, index, valid = counted.sum(), None, None
    host = None if is_dry_run() else recall(targets)
    if host is not None:
        known = (host.flatten() != ignore_index).nonzero().squeeze(1)
        if len(known) < len(flat):
            index = to_device(known, h.device)
            rows, flat = rows.index_select(0, index), flat.index_select(0, index)
    elif not is_dry_run():
        flat, valid = flat.masked_fill(~counted, 0), counted
    size, sum_dtype = (
        chunk_rows(len(table), h.device.type),
        torch.promote_types(dtype, torch.float32),
    )
    inputs, matrix = rows.to(dtype), table.to(dtype)
    shift = None if bias is None else bias.to(dtype)
    nll, smoothing_nll = (torch.zeros((), dtype=sum_dtype, device=h.device) for _ in range(2))
    correct = torch.zeros((), dtype=torch.int64, device=h.device)
    grads = [
        torch.zeros_like(each, dtype=sum_dtype) if needed and each is not None else None
        for each, needed in zip((rows, table, bias), needs_grad, strict=True)
    ]
    starts = range(0, len(rows), size)
    for start in starts[:1] if is_dry_run() else starts:
        chunk = inputs[start : start + size]
        logits = linear(chunk, matrix, shift).to(sum_dtype)  # (tokens, classes)
        cap_slope = None
        if cap is not None:
            logits = (logits / cap).tanh_()
            cap_slope, logits = 1 - logits.square(), logits.mul_(cap)
        losses = cross_entropy_rows(
            logits,
            flat[start : start + size],
            smoothing=smoothing,
            requires_grad=any(needs_grad),
            valid=None if valid is None else valid[start : start + size],
        )
        nll += losses.nll
        smoothing_nll += losses.smoothing_nll
        correct += losses.correct
        if losses.grad is not None:
            grad = losses.grad if cap_slope is None else losses.grad.mul_(cap_slope)
            _add_gradients(grads, grad, chunk, matrix, start)
    if grads[0] is not None and index is not None:
        grads[0] = grads[0].new_zeros(counted.numel(), h.shape[-1]).index_copy_(0, index, grads[0])
    loss = (1 - smoothing) * nll + smoothing * smoothing_nll if smoothing else nll.clone()
    return loss, nll, correct, count, grads


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward, while the logits of a chunk are in the cache."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        options: _LossOptions,
    ) -> tuple[Tensor, ...]:
        *sums, grads = _compute_chunks(h, table, bias, targets, options)
        _save_gradients(ctx, (h, table, bias), grads)
        ctx.mark_non_differentiable(*sums[1:])
        return tuple(sums)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return (*_scale_gradients(ctx, grad_output), None, None)


def _save_gradients(
    ctx: Any, inputs: tuple[Tensor | None, ...], grads: Sequence[Tensor | None]
) -> None:
    ctx.save_for_backward(*grads)
    ctx.likes = [None if each is None else (each.dtype, each.shape) for each in inputs]


def _scale_gradients(ctx: Any, grad_output: Tensor) -> list[Tensor | None]:
    """Return the saved gradients of h, table and bias, times that of the loss."""
    saved = zip(ctx.saved_tensors, ctx.likes, ctx.needs_input_grad[:3], strict=True)
    return [
        (grad * grad_output).to(like[0]).view(like[1]) if needed else None
        for grad, like, needed in saved
    ]


# torch.compile cannot trace the loop over chunks, whose number depends on the number of tokens.
# With a written schema; torch before 2.7 does not infer one from list[bool].
@torch.library.custom_op(
    "addnorm::linear_cross_entropy",
    mutates_args=(),
    schema=(
        "(Tensor h, Tensor table, Tensor? bias, Tensor targets, int ignore_index, "
        "ScalarType dtype, float? cap, float smoothing, bool[] needs_grad) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
    ),
)
def _linear_cross_entropy(
    h: Tensor,
    table: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    ignore_index: int,
    dtype: torch.dtype,
    cap: float | None,
    smoothing: float,
    needs_grad: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    options = _LossOptions(ignore_index, dtype, cap, smoothing, needs_grad)
    loss, nll, correct, count, grads = _compute_chunks(h, table, bias, targets, options)
    first, second, third = (h.new_empty(0) if each is None else each for each in grads)
    return loss, nll, correct, count, first, second, third


@_linear_cross_entropy.register_fake
def _(h: Tensor, table: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    _, _, dtype, _, _, needs_grad = rest
    sum_dtype = torch.promote_types(dtype, torch.float32)
    sums = [h.new_empty((), dtype=each) for each in (sum_dtype, sum_dtype, *[torch.int64] * 2)]
    shapes = (
        (h.numel() // h.shape[-1], h.shape[-1]),
        table.shape,
        None if bias is None else bias.shape,
    )
    grads = [
        h.new_empty(shape, dtype=sum_dtype) if needed and shape is not None else h.new_empty(0)
        for shape, needed in zip(shapes, needs_grad, strict=True)
    ]
    return (*sums, *grads)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    _save_gradients(ctx, inputs[:3], output[4:])


def _op_backward(ctx: Any, grad_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    return (*_scale_gradients(ctx, grad_output), *[None] * 6)


_linear_cross_entropy.register_autograd(_op_backward, setup_context=_setup_context)


def _add_gradients(
    grads: list[Tensor | None], grad: Tensor, chunk: Tensor, matrix: Tensor, start: int
) -> None:
    """Add the gradients of one chunk, from that of its logits, to those of h, table and bias."""
    dh, dtable, dbias = grads
    if dbias is not None:
        dbias += grad.sum(0)
    grad = grad.to(matrix.dtype)
    if dh is not None:
        dh[start : start + len(chunk)] = grad @ matrix
    if dtable is not None and grad.dtype == dtable.dtype:
        # The same as addmm_, which torch.utils.flop_counter does not count.
        torch.addmm(dtable, grad.T, chunk, out=dtable)
    elif dtable is not None:
        dtable += grad.T @ chunk


def _to_float32(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _check(scores: Tensor, targets: Tensor, smoothing: float, classes: str = "classes") -> None:
    check_tensor("targets", targets, f"class indices of shape {tuple(scores.shape[:-1])}")
    if targets.dtype not in (torch.int32, torch.int64):
        raise UserError(f"targets: expected class indices, got {describe_value(targets)}")
    if scores.ndim < 1 or scores.shape[:-1] != targets.shape:
        raise UserError(
            f"targets: expected shape {tuple(scores.shape[:-1])}, that of (..., {classes}) without "
            f"the last axis, got {tuple(targets.shape)}"
        )
    if not isinstance(smoothing, int | float) or not 0 <= smoothing < 1:
        raise UserError(f"smoothing: expected a number from 0 to below 1, got {smoothing!r}")
