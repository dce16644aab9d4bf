"""Proof of a change: outputs of both models in float64, also on inputs of other shapes."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from addnorm.core.errors import UserError
from addnorm.doctor.trace.errors import USER_CODE_ERRORS, describe_exception
from addnorm.rewiring.batches import Batch, vary_batches
from addnorm.rewiring.losses import evaluation, list_outputs

LOWER_PRECISION = (torch.float32, torch.bfloat16, torch.float16)
EXACT_TOLERANCE = 1e-9
"""Largest difference in float64, relative to the largest output, of the same function."""
FLOAT32_TOLERANCE = 1e-5
"""The same for a model that computes parts of its outputs in float32 whatever its dtype is."""


@dataclass(frozen=True)
class Proof:
    """Difference of the outputs of two models."""

    max_error: float
    scale: float
    """Largest output of the original."""
    inputs: int
    """Number of batches that were compared."""
    is_double: bool
    """Whether the original computes in float64 throughout."""

    @property
    def is_equal(self) -> bool:
        """Whether both compute the same function, but for rounding."""
        tolerance = EXACT_TOLERANCE if self.is_double else FLOAT32_TOLERANCE
        return self.max_error <= tolerance * max(self.scale, 1e-30)


def copy_model(model: nn.Module) -> nn.Module:
    """Return a copy, since even a forward pass in evaluation mode may change a model.

    Raises:
        UserError: the model cannot be copied
    """
    try:
        return copy.deepcopy(model)
    except USER_CODE_ERRORS as problem:
        raise UserError(
            f"model: expected one that copy.deepcopy can copy, got {describe_exception(problem)}"
        ) from problem


def to_double(model: nn.Module) -> nn.Module:
    """Return a copy of a model in float64, in evaluation mode."""
    return copy.deepcopy(model).double().eval()


def prove(original: nn.Module, result: nn.Module, batches: list[Batch]) -> Proof:
    """Compare two models in float64, on the given batches and on varied ones.

    Args:
        original: the original model
        result: the rewired one; it must accept the same inputs
        batches: inputs of the caller
    """
    double, other = to_double(original), to_double(result)
    errors, scales, is_double = [0.0], [0.0], True
    count = 0
    with evaluation(double, other):
        for index, batch in enumerate([*batches, *vary_batches(batches)]):
            try:
                with CastWatcher() as watcher:
                    expected = list_outputs(batch.call(double))
            except USER_CODE_ERRORS:
                if index < len(batches):
                    raise
                continue  # a varied input that the original does not accept
            try:
                got = list_outputs(batch.call(other))
            except USER_CODE_ERRORS as problem:
                if index < len(batches):
                    raise
                raise UserError(
                    f"the rewired model does not run on inputs that the original accepts: {problem}"
                ) from problem
            is_double &= not watcher.has_casts
            error, scale = compare_outputs(expected, got)
            errors.append(error)
            scales.append(scale)
            count += 1
    return Proof(max(errors), max(scales), count, is_double)


def compare_outputs(expected: list[Tensor], got: list[Tensor]) -> tuple[float, float]:
    """Return the largest difference, and the largest finite expected value."""
    error = scale = 0.0
    if len(expected) != len(got):
        return float("inf"), 1.0
    for theirs, ours in zip(expected, got, strict=True):
        if theirs.shape != ours.shape:
            return float("inf"), 1.0
        finite = theirs.isfinite()
        if not torch.equal(finite, ours.isfinite()):
            return float("inf"), 1.0
        if bool(finite.any()):
            difference = (theirs[finite].double() - ours[finite].double()).abs().max()
            error = max(error, float(difference))
            scale = max(scale, float(theirs[finite].abs().max()))
    return error, scale


class CastWatcher(TorchDispatchMode):
    """Notices operations that read float64 and return less, as `x.float()` inside a norm does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_casts = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dtype in LOWER_PRECISION:
            reads = [each for each in args if isinstance(each, Tensor)]
            self.has_casts |= any(each.dtype == torch.float64 and each.ndim for each in reads)
        return out


def rounding_error(original: nn.Module, result: nn.Module, batches: list[Batch]) -> float:
    """Return the largest difference of outputs in the models' own precision."""
    with evaluation(original, result):
        pairs = [
            compare_outputs(list_outputs(batch.call(original)), list_outputs(batch.call(result)))
            for batch in batches
        ]
    return max(error for error, _ in pairs)
