"""Base class of norms: one signature, checked shapes, statistics in float32 or float64."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.core.registry import Registry
from addnorm.core.validation import MAX_SIZE, check_at_most
from addnorm.kernels.add_norm.reference import NormParams
from addnorm.kernels.inputs import check_tensor

registry: "Registry[Norm]" = Registry("norm")
register = registry.register


def make_norm(call: "str | Call", dim: int) -> "Norm":
    """Build the norm a call string names, for vectors of `dim` features.

    >>> make_norm("rms(eps=1e-6)", 4)(torch.ones(2, 4))
    tensor([[1.0000, 1.0000, 1.0000, 1.0000],
            [1.0000, 1.0000, 1.0000, 1.0000]], grad_fn=<MulBackward0>)
    """
    if not isinstance(dim, int) or isinstance(dim, bool) or dim < 1:
        raise UserError(f"dim: expected a whole number from 1, got {dim!r}")
    check_at_most("dim", dim, MAX_SIZE)
    return registry.make(call, dim)


class Norm(nn.Module, ABC):
    """Normalization of feature vectors.

    A subclass implements its formula in `normalize`, which gets float32 or float64. `forward`
    checks the input, casts it to that precision, and casts the result back to the input's dtype.

    Every norm accepts a `mask`, (..., L) with True at valid tokens, and a condition `cond`. Most
    norms ignore both.
    """

    causal: bool = True
    """Whether a token's output is independent of later tokens; causal stacks require it."""
    gain: ClassVar[str | None] = "weight"
    """Name of the parameter that scales the output, or None; see `set_gain`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    @abstractmethod
    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        """Compute the formula of the norm.

        Args:
            x: (..., dim) input in float32 or float64
            mask: (...) boolean, True at valid tokens
            cond: condition, for conditional norms
        """

    def kernel_params(self) -> NormParams | None:
        """Return the parameters of the fused add+norm kernel; None if it lacks this norm."""
        return None

    def reset_parameters(self) -> None:
        """Initialize all parameters and buffers."""

    def set_gain(self, value: float) -> None:
        """Multiply the initial gain of the output by a value."""
        gain = None if self.gain is None else getattr(self, self.gain, None)
        if not isinstance(gain, Tensor):
            raise UserError(
                f"{type(self).__name__} has no gain to start at {value}; choose a norm with a "
                "gain, or affine=True"
            )
        with torch.no_grad():
            gain.mul_(value)

    def forward(self, x: Tensor, mask: Tensor | None = None, cond: Tensor | None = None) -> Tensor:
        """Normalize the last axis.

        Args:
            x: (..., dim) input
            mask: (...) boolean, True at valid tokens; used by norms with statistics over tokens
            cond: condition; used by conditional norms

        Returns:
            (..., dim) output in the dtype of x.
        """
        check_tensor(type(self).__name__, x, f"a tensor of shape (..., {self.dim})")
        if not x.is_floating_point():
            raise UserError(f"{type(self).__name__}: expected floating point, got {x.dtype}")
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise UserError(
                f"{type(self).__name__}(dim={self.dim}): expected shape (..., {self.dim}), got "
                f"{tuple(x.shape)}"
            )
        check_mask(mask, x)
        return self.normalize(x.to(statistics_dtype(x)), mask, cond).to(x.dtype)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


registry.base = Norm


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype for statistics: float64 for float64, float32 otherwise."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def check_mask(mask: Tensor | None, x: Tensor, *, name: str = "mask") -> None:
    """Raise `UserError` unless a mask is None or a boolean tensor with one entry per token.

    Args:
        mask: mask to check
        x: (..., dim) tokens
        name: name of the argument, for error messages
    """
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        actual: Any = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise UserError(
            f"{name}: expected booleans, True at valid tokens, got {actual}; for 1/0 masks pass "
            "mask.bool(), for torch's key_padding_mask (True at padding) pass ~key_padding_mask"
        )
    if mask.shape != x.shape[:-1]:
        raise UserError(
            f"{name}: expected one entry per token, {tuple(x.shape[:-1])} for {tuple(x.shape)}, "
            f"got {tuple(mask.shape)}"
        )
