"""Linear maps, natively where that is faster.

y = x weight^T + bias

x: (..., depth); weight: (columns, depth); bias: (columns)

The libraries behind torch turn the weights into the order that suits them in every call, which with
few rows, as when texts grow by a token, takes as long as the product: the native library turns the
rows then. Of many rows and narrow weights it is faster since it does not copy the bias into the
answer first and adds gradients where they are made.
"""

import struct
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.kernels import native
from addnorm.kernels.hooks import watched

FEWEST, WORK, DEEPEST = 4, 2**19, 2**12
"""Rows, and rows times weights, from which on, and features up to which that is faster (`addnorm
bench kernels`)."""
FEW, DENSE = 112, 16
"""ADDNORM_FEW of native/linear.h: of more rows, columns come in so many."""
FORWARD = nn.Linear.forward
NARROW = 64
"""Features of x up to which sums over rows of dy x are faster."""
LINEAR, SUMS = struct.Struct("@3q5P3i"), struct.Struct("@3q4P")
"""`struct addnorm_linear` and `struct addnorm_sums` of native/linear.h."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`; natively without gradient alone."""
    columns, depth = weight.shape
    if (
        torch.is_grad_enabled()
        or not native.eager()
        or x.shape[-1:] != (depth,)
        or not (bias is None or bias.shape == (columns,))
        or x.numel() < FEWEST * depth
        or x.numel() * columns < WORK
        or (x.numel() > FEW * depth and columns % DENSE)
        or not suits(x, weight, bias)
    ):
        return F.linear(x, weight, bias)
    return product(x, weight, bias)


def plain(layer: nn.Module) -> bool:
    """Whether a layer is torch's own linear map, so that it need not be called."""
    own = type(layer) is nn.Linear and nn.Linear.forward is FORWARD
    return own and not watched(layer)


def suits(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether the native library may take a map of x with these weights and biases, which are all
    of float32 and dense.
    """
    if torch.is_autocast_enabled("cpu"):
        return False
    if x.dtype != torch.float32 or x.shape[-1] > DEEPEST:
        return False
    dense = all(
        each is None or (each.dtype == torch.float32 and each.is_contiguous()) for each in weights
    )
    return dense and native.suits(0, x, *weights)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    back: bool = False,
    relu: bool = False,
    gate: Tensor | None = None,
    to: Tensor | None = None,
) -> Tensor:
    """x weight^T + bias, or x weight if `back`, by the native library.

    relu: what is below 0 becomes 0
    gate: of the answer's shape, dense: where it is not above 0, the answer is 0
    to: what the answer is added to
    """
    x = x.contiguous()
    columns, depth = reversed(weight.shape) if back else weight.shape
    out = x.new_empty(*x.shape[:-1], columns) if to is None else to
    at = map(native.address, (x, weight, bias, gate, out))
    flags = (back, relu, to is not None)
    if native.run("linear", LINEAR.pack(x.numel() // depth, depth, columns, *at, *flags)):
        raise MemoryError("no memory for the weights of a linear map")
    return out


def sums(dy: Tensor, x: Tensor, wanted: Sequence[bool]) -> tuple[Tensor | None, Tensor | None]:
    """dy^T x and the sum of dy over all rows: the gradients of a weight and its bias, where wanted.

    dy: (..., columns), x: (..., depth), dense, both a multiple of DENSE wide
    """
    columns, depth = dy.shape[-1], x.shape[-1]
    weight = x.new_empty(columns, depth) if wanted[0] and depth <= NARROW else None
    bias = x.new_empty(columns) if wanted[1] else None
    if weight is not None or bias is not None:
        at = map(native.address, (dy, x, weight, bias))
        native.run("sums", SUMS.pack(x.numel() // depth, depth, columns, *at))
    if wanted[0] and weight is None:
        weight = dy.view(-1, columns).t() @ x.view(-1, depth)
    return weight, bias
