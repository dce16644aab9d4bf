"""Decomposition of fused additions into plain steps.

torch.addcmul(x, a, b)   ->   step = a * b;                   x + step
torch.lerp(x, end, w)    ->   step = w * (end - x);           x + step
torch.add(x, f, alpha=2) ->   step = f * 2;                   x + step
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

RunOp = Callable[..., Any]
"""Function that computes and records one step: `run_op("mul", a, b)`."""
FUSED_ARGUMENTS = {
    "addcmul": ("input", "tensor1", "tensor2"),
    "addcdiv": ("input", "tensor1", "tensor2"),
    "lerp": ("input", "end", "weight"),
    "add": ("input", "other"),
    "sub": ("input", "other"),
}
"""Names of the positional arguments of each operation."""


def decompose_fused_add(
    op: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, run_op: RunOp
) -> tuple[Any, Any] | None:
    """Compute the steps before the sum of a fused addition.

    addcmul: x + value * (a * b). addcdiv: x + value * (a / b). lerp: x + weight * (end - x).
    add, sub: x + alpha * other, x - alpha * other.

    Args:
        op: canonical name of the call
        args: positional arguments
        kwargs: keyword arguments
        run_op: computes one step

    Returns:
        Both operands of the sum; None if the call is not a fused addition.
    """
    names = FUSED_ARGUMENTS.get(op, ())
    if not names or len(args) > len(names):
        return None
    arguments = dict(zip(names, args, strict=False)) | dict(kwargs)
    x = arguments.get("input")
    if op == "lerp":
        return x, run_op("mul", arguments["weight"], run_op("sub", arguments["end"], x))
    if op in ("addcmul", "addcdiv"):
        product = run_op(
            "mul" if op == "addcmul" else "div", arguments["tensor1"], arguments["tensor2"]
        )
        value = arguments.get("value", 1)
        return x, product if value == 1 else run_op("mul", product, value)
    alpha, other = arguments.get("alpha", 1), arguments.get("other")
    if alpha == 1 or not isinstance(other, Tensor):
        return None
    return x, run_op("mul", other, alpha)
