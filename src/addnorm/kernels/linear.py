"""Linear map without gradient, native where that is faster than BLAS.

y = x weight^T + bias

x: (..., depth); weight: (columns, depth); bias: (columns)

    >>> weight, bias = torch.tensor([[1.0, 0.0], [0.0, 3.0]]), torch.tensor([10.0, 20.0])
    >>> linear(torch.tensor([[1.0, 2.0]]), weight, bias)
    tensor([[11., 26.]])

BLAS libraries pack the weights into their own layout in every call. With few rows, as in
incremental decoding, packing takes as long as the product. The native library then transposes the
few rows of x instead and reads the weights in place. With many rows it saves the copy of the bias
into the output.

The native library is used if gradients are disabled, the program runs eagerly without autocast, all
tensors are float32 with dense weights, and the sizes are within MIN_ROWS, MIN_WORK and
MAX_FEATURES. Everything else, training included, is `torch.nn.functional.linear`.
"""

import struct

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.kernels import library
from addnorm.kernels.hook_detection import has_hooks

MIN_ROWS, MIN_WORK, MAX_FEATURES = 4, 2**19, 2**12
"""Sizes at which the native library is faster (`addnorm bench kernels`): minimum number of rows,
minimum number of multiplications, maximum number of input features."""
MAX_SMALL_ROWS, COLUMN_MULTIPLE = 112, 16
"""With more rows than ADDNORM_LINEAR_MAX_SMALL_ROWS of native/linear/linear.h, the number of
columns must be a multiple of 16."""
TORCH_LINEAR_FORWARD = nn.Linear.forward
LINEAR_STRUCT = struct.Struct("@3q4P")
"""`struct addnorm_linear` of native/linear/linear.h."""


def apply_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return `layer(x)`, without calling the layer if that cannot be observed.

    The layer is called if gradients are enabled, if it has hooks, or if it is not exactly
    `torch.nn.Linear`, for example a LoRA or quantized layer.
    """
    if torch.is_grad_enabled() or not _is_plain_linear(layer):
        y: Tensor = layer(x)
        return y
    return linear(x, layer.weight, layer.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear`, native where the module docstring says so."""
    columns, depth = weight.shape
    if (
        torch.is_grad_enabled()
        or not library.is_eager()
        or x.shape[-1:] != (depth,)
        or not (bias is None or bias.shape == (columns,))
        or x.numel() < MIN_ROWS * depth
        or x.numel() * columns < MIN_WORK
        or (x.numel() > MAX_SMALL_ROWS * depth and columns % COLUMN_MULTIPLE)
        or not _is_native_supported(x, weight, bias)
    ):
        return F.linear(x, weight, bias)
    return linear_native(x, weight, bias)


def linear_native(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x weight^T + bias with the native library; the caller has checked the arguments."""
    x = x.contiguous()
    columns, depth = weight.shape
    out = x.new_empty(*x.shape[:-1], columns)
    pointers = map(library.data_ptr_or_null, (x, weight, bias, out))
    arguments = LINEAR_STRUCT.pack(x.numel() // depth, depth, columns, *pointers)
    if library.call_native("linear", arguments):
        raise MemoryError("cannot allocate the workspace of a linear map")
    return out


def _is_plain_linear(layer: nn.Module) -> bool:
    unchanged = type(layer) is nn.Linear and nn.Linear.forward is TORCH_LINEAR_FORWARD
    return unchanged and not has_hooks(layer)


def _is_native_supported(x: Tensor, *weights: Tensor | None) -> bool:
    if torch.is_autocast_enabled("cpu"):
        return False
    if x.dtype != torch.float32 or x.shape[-1] > MAX_FEATURES:
        return False
    dense = all(
        each is None or (each.dtype == torch.float32 and each.is_contiguous()) for each in weights
    )
    return dense and library.can_use_native(0, x, *weights)
