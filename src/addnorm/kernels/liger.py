"""Fused operators for CUDA from Liger-Kernel, an optional package (`pip install 'addnorm[cuda]'`).

On a GPU a norm is bound by memory: as separate operations, every step reads and writes the whole
tensor. These functions are the same as those in plain torch that call them (`kernels/norm.py`,
`kernels/add_norm/`, `kernels/cross_entropy_rows.py`), in one kernel each. A caller asks
`can_use_liger` first. `ADDNORM_LIGER=off` disables the package.

In a compiled graph torch's own compiler fuses, so these are for eager programs. Their gradients
cannot be differentiated again; torch raises an error in that case.

Hsu et al., Liger Kernel: Efficient Triton Kernels for LLM Training, 2024, arXiv 2410.10989.
"""

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from addnorm.kernels.library import is_eager, is_recording

DEVICES = ("cuda",)
"""Device types with Triton's kernels."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_FEATURES = 65536
"""Largest dim of the norms."""
MAX_BLOCK = 32768
"""Classes that the kernel of the cross entropy reads at a time."""
IGNORED = -100
"""Target of a row that counts as 0, for the kernel of the cross entropy."""


def can_use_liger(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether Liger-Kernel is installed and takes these tensors. x: the largest input."""
    return (
        x.device.type in DEVICES
        and x.dtype in DTYPES
        and x.numel() > 0
        and all(
            each is None or (type(each) in (Tensor, nn.Parameter) and each.device == x.device)
            for each in (x, *others)
        )
        # Autocast computes norms of half-precision inputs in float32.
        and (x.dtype == torch.float32 or not torch.is_autocast_enabled(x.device.type))
        and is_eager()
        and not is_recording()
        and is_installed()
    )


def can_use_norm(x: Tensor, *others: Tensor | None) -> bool:
    """Return whether the norms of Liger-Kernel take these tensors. x: (..., dim)."""
    return x.ndim > 0 and x.shape[-1] <= MAX_FEATURES and can_use_liger(x, *others)


@cache
def is_installed() -> bool:
    """Return whether Liger-Kernel and Triton are installed, and not switched off."""
    if os.environ.get("ADDNORM_LIGER", "") == "off":
        return False
    return find_spec("liger_kernel") is not None and find_spec("triton") is not None


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return `F.rms_norm(x, (dim,), weight, eps)`."""
    # "gemma" rounds once, at the end, as torch does. in_place would write into the gradient, which
    # may have another reader.
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    y: Tensor = _once_differentiable(LigerRMSNormFunction).apply(
        x, weight, eps, 0.0, "gemma", False
    )
    return y


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return `F.layer_norm(x, (dim,), weight, bias, eps)`."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    y: Tensor = _once_differentiable(LigerLayerNormFunction).apply(x, weight, bias, eps)
    return y


def add_rms_norm(x: Tensor, f: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the sum s = x + f, and `rms_norm(s, weight, eps)`."""
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    run = _once_differentiable(LigerFusedAddRMSNormFunction).apply
    y, s = run(x, f.to(x.dtype), weight, eps, 0.0, "gemma", False)
    return s, y


def dyt(x: Tensor, alpha: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `weight * tanh(alpha * x) + bias`. alpha: a scalar."""
    from liger_kernel.ops.dyt import LigerDyTFunction

    y: Tensor = _once_differentiable(LigerDyTFunction).apply(x, alpha.reshape(1), weight, bias)
    return y


def cross_entropy_rows(
    logits: Tensor, targets: Tensor, *, smoothing: float, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row and whether it is correct; overwrite logits with their gradient.

    The kernel is launched here, because Liger's function first reads the number of targets from the
    device, for which the host would wait.

    Args:
        logits: (rows, classes), contiguous
        targets: (rows) class indices
        smoothing: label smoothing
        valid: (rows) False at rows that count as 0; None if all count
    """
    from liger_kernel.ops.cross_entropy import liger_cross_entropy_kernel

    rows, classes = logits.shape
    losses, correct = (torch.zeros(rows, device=logits.device) for _ in range(2))
    targets = targets if valid is None else targets.masked_fill(~valid, IGNORED)
    liger_cross_entropy_kernel[(rows,)](
        X_ptr=logits,
        X_stride=logits.stride(0),
        Y_ptr=targets.contiguous(),
        Y_stride=1,
        weight_ptr=None,
        loss_ptr=losses,
        z_loss_ptr=None,
        loss_stride=1,
        token_accuracy_ptr=correct,
        token_accuracy_stride=1,
        predicted_tokens_ptr=None,
        predicted_tokens_stride=0,
        n_cols=classes,
        n_non_ignore=rows,  # for means; these are sums
        sum_non_ignore_weight=rows,
        weight_sum=0.0,
        ignore_index=IGNORED,
        lse_square_scale=0.0,
        label_smoothing=smoothing,
        reduction="sum",
        softcap=None,
        RETURN_Z_LOSS=False,
        RETURN_TOKEN_ACCURACY=True,
        RETURN_PREDICTED_TOKENS=False,
        HAS_WEIGHT=False,
        HAS_SOFTCAPPING=False,
        HAS_GRADIENTS=True,
        BLOCK_SIZE=min(MAX_BLOCK, 1 << (classes - 1).bit_length()),
        num_warps=32 if torch.version.hip is None else 16,
    )
    return losses, correct


@cache
def _once_differentiable(function: Any) -> Any:
    """Return a function of Liger whose gradient refuses to be differentiated again.

    Their backward consists of kernels that autograd cannot see, so gradients of gradients would be
    wrong without an error.
    """
    backward = staticmethod(once_differentiable(function.backward))
    return type(function.__name__, (function,), {"backward": backward})
