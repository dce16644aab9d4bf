"""Refusal of what CTranslate2 cannot express, and conversion of tensors to its arrays."""

from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError


def refuse(site: str, term: str) -> UserError:
    """Return the error for a part of a model that CTranslate2 cannot express."""
    return UserError(
        f"{site}: expected a form that CTranslate2 has, got {term}; use --to onnx or --to hf"
    )


def to_array(tensor: Tensor) -> Any:
    """Return a tensor as a float32 array."""
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()
