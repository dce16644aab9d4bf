"""Fits of a norm to inputs and outputs of another map, in closed form."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import Norm
from addnorm.rewiring.batches import Batch
from addnorm.rewiring.losses import evaluation, run_batch

MAX_ROWS = 4096
"""Tokens of a fit."""
NUM_SLOPES = 40
SLOPE_RANGE = (0.005, 5.0)
"""Slopes of DyT and Derf that are tried."""


def record_inputs(model: nn.Module, path: str, batches: list[Batch]) -> Tensor:
    """Return the inputs of the module at a path as rows of valid tokens, (tokens, dim)."""
    return record_tensors(model, {path: "input"}, batches)[path]


def record_tensors(
    model: nn.Module, wanted: dict[str, str], batches: list[Batch]
) -> dict[str, Tensor]:
    """Return inputs or outputs of modules as rows of valid tokens.

    Args:
        model: the model
        wanted: "input" or "output", by path of the module
        batches: data
    """
    rows: dict[str, list[Tensor]] = {path: [] for path in wanted}
    mask: list[Tensor | None] = [None]

    def keep(path: str, tensor: Tensor) -> None:
        valid = mask[0]
        fits = valid is not None and valid.shape == tensor.shape[:-1]
        tokens = tensor[valid] if fits else tensor.reshape(-1, tensor.shape[-1])
        rows[path].append(tokens.detach().clone())

    handles = []
    for path, what in wanted.items():
        module = model.get_submodule(path)
        if what == "input":
            hook = module.register_forward_pre_hook(
                lambda m, args, kwargs, path=path: keep(path, _first_tensor(args, kwargs)),
                with_kwargs=True,
            )
        else:
            hook = module.register_forward_hook(lambda m, args, out, path=path: keep(path, out))
        handles.append(hook)
    try:
        with evaluation(model):
            for batch in batches:
                mask[0] = _find_mask(batch)
                run_batch(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return {path: _thin(torch.cat(parts)) for path, parts in rows.items()}


def _first_tensor(args: tuple[object, ...], kwargs: dict[str, object]) -> Tensor:
    return next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))


def _find_mask(batch: Batch) -> Tensor | None:
    mask = batch.kwargs.get("attention_mask", batch.kwargs.get("mask"))
    return mask.bool() if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _thin(rows: Tensor) -> Tensor:
    """Return at most `MAX_ROWS` rows, spread evenly, the same for every tensor of as many rows."""
    step = math.ceil(len(rows) / MAX_ROWS)
    return rows[::step]


def fit_norm(norm: Norm, x: Tensor, y: Tensor) -> float:
    """Set the parameters of a norm so that norm(x) is close to y, by least squares.

    Gain and bias of each feature follow from a regression. The slope `alpha` of DyT and Derf is
    the best of a grid.

    Args:
        norm: norm to set, in place
        x: (tokens, dim) inputs
        y: (tokens, dim) outputs to reproduce

    Returns:
        The relative error, |norm(x) - y| / |y|.
    """
    alpha = getattr(norm, "alpha", None)
    if not isinstance(alpha, nn.Parameter) or alpha.numel() != 1:
        return _fit_affine(norm, x, y)
    low, high = (math.log(each) for each in SLOPE_RANGE)
    # A slope of 0.1 to 0.3 over the deviation is typical; the grid covers far more around that.
    unit = float(x.std().clamp(min=1e-12))
    steps = torch.linspace(low, high, NUM_SLOPES, dtype=torch.float64).exp().tolist()
    slopes = sorted({*steps, *(each / unit for each in steps)})
    best, best_slope = math.inf, slopes[0]
    for slope in slopes:
        alpha.data.fill_(slope)
        error = _fit_affine(norm, x, y)
        if error < best:
            best, best_slope = error, slope
    alpha.data.fill_(best_slope)
    return _fit_affine(norm, x, y)


def _fit_affine(norm: Norm, x: Tensor, y: Tensor) -> float:
    """Fit gain and bias of each feature, or one gain, or nothing if the norm has neither."""
    with torch.no_grad():
        gain = None if norm.gain is None else getattr(norm, norm.gain, None)
        bias = getattr(norm, "bias", None)
        if isinstance(gain, Tensor):
            offset = float(getattr(norm, "gain_offset", 0.0))
            gain.data.fill_(1.0 - offset)
            if isinstance(bias, Tensor):
                bias.data.zero_()
            t = norm(x)
            slope, intercept = _regress(t, y, has_bias=isinstance(bias, Tensor))
            if gain.numel() == 1:
                slope = (t * y).sum() / t.square().sum().clamp(min=1e-30)
            gain.data.copy_((slope - offset).view(gain.shape))
            if isinstance(bias, Tensor):
                bias.data.copy_(intercept)
        elif isinstance(norm, AffineNorm) and isinstance(bias, Tensor):
            bias.data.copy_((y - norm(x)).mean(0))
        return float((norm(x) - y).norm() / y.norm().clamp(min=1e-30))


def _regress(t: Tensor, y: Tensor, *, has_bias: bool) -> tuple[Tensor, Tensor]:
    """Return slope and intercept of y on t, feature by feature."""
    center_t = t.mean(0) if has_bias else torch.zeros_like(t[0])
    center_y = y.mean(0) if has_bias else torch.zeros_like(y[0])
    square = (t - center_t).square().sum(0)
    slope = ((t - center_t) * (y - center_y)).sum(0) / square.clamp(min=1e-30)
    slope = torch.where(square > 1e-20, slope, torch.zeros_like(slope))
    return slope, center_y - slope * center_t


def refine(
    model: nn.Module,
    parameters: list[nn.Parameter],
    objective: Callable[[nn.Module], Tensor],
    *,
    steps: int,
    lr: float = 0.02,
) -> None:
    """Lower an objective by some steps of Adam on few parameters, and keep the best values.

    Args:
        model: the model, in evaluation mode
        parameters: parameters to change
        objective: function of the model that returns a scalar
        steps: number of steps
        lr: step size, relative to the size of each parameter
    """
    if not parameters or steps < 1:
        return
    flags = {each: each.requires_grad for each in model.parameters()}
    best = [each.data.clone() for each in parameters]
    lowest = math.inf
    # One scale for each tensor: gains of a stream may be 30, biases 0.
    groups = [
        {"params": [each], "lr": lr * max(float(each.data.square().mean().sqrt()), 0.01)}
        for each in parameters
    ]
    optimizer = torch.optim.Adam(groups, betas=(0.8, 0.95))
    try:
        for each in flags:
            each.requires_grad_(False)
        for each in parameters:
            each.requires_grad_(True)
        for step in range(steps + 1):
            with torch.enable_grad():
                value = objective(model)
            if float(value.detach()) < lowest:
                lowest = float(value.detach())
                best = [each.data.clone() for each in parameters]
            if step == steps or not bool(value.detach().isfinite()):
                break
            optimizer.zero_grad()
            torch.autograd.backward(value)
            optimizer.step()
    finally:
        for each, kept in zip(parameters, best, strict=True):
            each.data.copy_(kept)
            each.grad = None
        for each, flag in flags.items():
            each.requires_grad_(flag)
