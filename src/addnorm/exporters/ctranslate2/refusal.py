"""Refusal of what CTranslate2 cannot express, and conversion of tensors to its arrays."""

from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import ExportRefusedError


def refuse(site: str, term: str, way_out: str = "use --to onnx") -> ExportRefusedError:
    """Return the error for a part of a model that CTranslate2 cannot express.

    >>> print(refuse("encoder", "ALiBi, which only decoders have"))
    encoder: ALiBi, which only decoders have; CTranslate2 cannot express it; use --to onnx
    """
    return ExportRefusedError(f"{site}: {term}; CTranslate2 cannot express it; {way_out}")


def to_array(tensor: Tensor) -> Any:
    """Return a tensor as a float32 array."""
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()
