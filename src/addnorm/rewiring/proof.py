"""Proof of a change: outputs of both models in float64, also on inputs of other shapes."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.doctor.trace.errors import USER_CODE_ERRORS
from addnorm.rewiring.batches import Batch, vary_batches
from addnorm.rewiring.losses import evaluation, list_outputs
from addnorm.rewiring.tracing.precision import CastWatcher

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


def rounding_error(original: nn.Module, result: nn.Module, batches: list[Batch]) -> float:
    """Return the largest difference of outputs in the models' own precision."""
    with evaluation(original, result):
        pairs = [
            compare_outputs(list_outputs(batch.call(original)), list_outputs(batch.call(result)))
            for batch in batches
        ]
    return max(error for error, _ in pairs)
