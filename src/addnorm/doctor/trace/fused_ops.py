"""Sums that torch fuses into one call, spelt out as the plain steps they stand for."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

RunOp = Callable[..., Any]
"""do("mul", a, b): carry out one plain step."""
FUSED_ARGUMENTS = {
    "addcmul": ("input", "tensor1", "tensor2"),
    "addcdiv": ("input", "tensor1", "tensor2"),
    "lerp": ("input", "end", "weight"),
    "add": ("input", "other"),
    "sub": ("input", "other"),
}
"""What their arguments are called."""


def decompose_fused_add(
    op: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, run_op: RunOp
) -> tuple[Any, Any] | None:
    """Both sides of the sum that a call makes, all but the sum itself done; None if it is plain.

    addcmul: x + value * (a * b). addcdiv: x + value * (a / b). lerp: x + weight * (end - x).
    add, sub: x + alpha * other, x - alpha * other.
    """
    names = FUSED_ARGUMENTS.get(op, ())
    if not names or len(args) > len(names):
        return None
    said = dict(zip(names, args, strict=False)) | dict(kwargs)
    x = said.get("input")
    if op == "lerp":
        return x, run_op("mul", said["weight"], run_op("sub", said["end"], x))
    if op in ("addcmul", "addcdiv"):
        product = run_op("mul" if op == "addcmul" else "div", said["tensor1"], said["tensor2"])
        value = said.get("value", 1)
        return x, product if value == 1 else run_op("mul", product, value)
    alpha, other = said.get("alpha", 1), said.get("other")
    if alpha == 1 or not isinstance(other, Tensor):
        return None
    return x, run_op("mul", other, alpha)
