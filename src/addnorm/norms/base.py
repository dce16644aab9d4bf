"""What every norm has in common: one call, checked shapes, statistics in float32 or better."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.core.registry import Registry
from addnorm.kernels.add_norm.reference import NormParams

registry: "Registry[Norm]" = Registry("norm")
register = registry.register


def make_norm(call: "str | Call", dim: int) -> "Norm":
    """Build the norm a call string names, for vectors of `dim` features.

    >>> make_norm("rms(eps=1e-6)", 4)(torch.ones(2, 4))
    tensor([[1.0000, 1.0000, 1.0000, 1.0000],
            [1.0000, 1.0000, 1.0000, 1.0000]], grad_fn=<MulBackward0>)
    """
    if not isinstance(dim, int) or isinstance(dim, bool) or dim < 1:
        raise UserError(f"dim must be a whole number from 1, got {dim!r}")
    return registry.make(call, dim)


class Norm(nn.Module, ABC):
    """A map from vectors to vectors of the same length that keeps their size in bounds.

    A subclass writes its formula in `normalize`, which always sees float32 or float64 and never has
    to cast; `forward` checks the input, chooses that precision and returns the dtype that came in.

    Every norm takes a `mask`, (..., L), True at valid tokens, and a condition `cond`. Most have no
    use for either.
    """

    causal: bool = True
    """Whether a token's result is free of later tokens; if not, causal stacks refuse the norm."""
    gain: ClassVar[str | None] = "weight"
    """The parameter that scales the output, None where nothing does; see `set_gain`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    @abstractmethod
    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        """The formula, x: (..., dim) in float32 or float64."""

    def kernel_params(self) -> NormParams | None:
        """What a kernel that adds and normalizes in one go has to know; None where there is none
        for this norm.
        """
        return None

    def reset_parameters(self) -> None:
        """Put every parameter and buffer at its start value. Nothing to do where there are none."""

    def set_gain(self, value: float) -> None:
        """Scale the start value of the output's gain."""
        gain = None if self.gain is None else getattr(self, self.gain, None)
        if not isinstance(gain, Tensor):
            raise UserError(
                f"{type(self).__name__} has no gain to start at {value}; choose a norm with a"
                " gain, or affine=True"
            )
        with torch.no_grad():
            gain.mul_(value)

    def forward(self, x: Tensor, mask: Tensor | None = None, cond: Tensor | None = None) -> Tensor:
        """Normalize `x`, (..., dim); same shape and dtype out."""
        if not x.is_floating_point():
            raise UserError(f"{type(self).__name__} wants floating point, got {x.dtype}")
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise UserError(
                f"{type(self).__name__}(dim={self.dim}) wants (..., {self.dim}), got "
                f"{tuple(x.shape)}"
            )
        check_mask(mask, x)
        return self.normalize(x.to(statistics_dtype(x)), mask, cond).to(x.dtype)

    def extra_repr(self) -> str:
        """The dimension, for print()."""
        return f"dim={self.dim}"


def statistics_dtype(x: Tensor) -> torch.dtype:
    """float64 for float64, float32 for all others."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def check_mask(mask: Tensor | None, x: Tensor, *, name: str = "mask") -> None:
    """Refuse a mask that is not boolean or has not one entry for each token of `x`, (..., dim)."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got: Any = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise UserError(
            f"{name} must be boolean, True at valid tokens, got {got}; for 1/0 masks pass "
            "mask.bool(), "
            "for torch's key_padding_mask (True at padding) pass ~key_padding_mask"
        )
    if mask.shape != x.shape[:-1]:
        raise UserError(
            f"{name} must have one entry a token, {tuple(x.shape[:-1])} for {tuple(x.shape)},"
            f" got {tuple(mask.shape)}"
        )
