"""Linear maps, natively where that is faster.

y = x weight^T + bias

x: (..., depth); weight: (columns, depth); bias: (columns)

The libraries behind torch turn the weights into the order that suits them in every call, which with
few rows, as when texts grow by a token, takes as long as the product: the native library turns the
rows then. Of many rows it is faster since it does not copy the bias into the answer first. With
gradients, torch computes.
"""

import struct

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.kernels import library
from addnorm.kernels.hooks import has_hooks

MIN_ROWS, MIN_WORK, MAX_FEATURES = 4, 2**19, 2**12
"""Rows, and rows times weights, from which on, and features up to which that is faster (`addnorm
bench kernels`)."""
MAX_SMALL_ROWS, COLUMN_MULTIPLE = 112, 16
"""ADDNORM_FEW of native/linear.h: of more rows, columns come in so many."""
TORCH_LINEAR_FORWARD = nn.Linear.forward
LINEAR_STRUCT = struct.Struct("@3q4P")
"""`struct addnorm_linear` of native/linear.h."""


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """What a layer makes of x."""
    if torch.is_grad_enabled() or not is_plain_linear(
        layer
    ):  # a function of its own would cost more
        made: Tensor = layer(x)
        return made
    return linear(x, layer.weight, layer.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`; natively without gradient alone."""
    columns, depth = weight.shape
    if (
        torch.is_grad_enabled()
        or not library.is_eager()
        or x.shape[-1:] != (depth,)
        or not (bias is None or bias.shape == (columns,))
        or x.numel() < MIN_ROWS * depth
        or x.numel() * columns < MIN_WORK
        or (x.numel() > MAX_SMALL_ROWS * depth and columns % COLUMN_MULTIPLE)
        or not can_use_native_linear(x, weight, bias)
    ):
        return F.linear(x, weight, bias)
    return linear_native(x, weight, bias)


def is_plain_linear(layer: nn.Module) -> bool:
    """Whether a layer is torch's own linear map, so that it need not be called."""
    own = type(layer) is nn.Linear and nn.Linear.forward is TORCH_LINEAR_FORWARD
    return own and not has_hooks(layer)


def can_use_native_linear(x: Tensor, *weights: Tensor | None) -> bool:
    """Whether the native library may take a map of x with these weights and biases, which are all
    of float32 and dense.
    """
    if torch.is_autocast_enabled("cpu"):
        return False
    if x.dtype != torch.float32 or x.shape[-1] > MAX_FEATURES:
        return False
    dense = all(
        each is None or (each.dtype == torch.float32 and each.is_contiguous()) for each in weights
    )
    return dense and library.can_use_native(0, x, *weights)


def linear_native(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias, by the native library."""
    x = x.contiguous()
    columns, depth = weight.shape
    out = x.new_empty(*x.shape[:-1], columns)
    at = map(library.data_ptr_or_null, (x, weight, bias, out))
    if library.call_native("linear", LINEAR_STRUCT.pack(x.numel() // depth, depth, columns, *at)):
        raise MemoryError("no memory for the weights of a linear map")
    return out
