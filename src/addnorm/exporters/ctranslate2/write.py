"""Files of a CTranslate2 model: `model.bin`, `config.json` and the vocabulary."""

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file

from addnorm.core.errors import UserError
from addnorm.exporters.ctranslate2.library import import_ctranslate2
from addnorm.exporters.ctranslate2.spec import head_tensors
from addnorm.models import Model

QUANTIZATIONS = ("float32", "int8", "float16", "bfloat16")
SAFE_INT8, FULL_INT8 = 63, 127
"""Largest int8 weight. Without VNNI instructions the sum of two products of an unsigned and a
signed byte is kept in 16 bits and saturates beyond 64 * 255 * 2; within 63 it never does."""
HEAD_FILE = "head.safetensors"


def write_spec(
    spec: Any, model: Model, folder: Path, *, quantize: str = "float32", int8_range: int = SAFE_INT8
) -> None:
    """Write a specification to a folder.

    Args:
        spec: result of `build_spec`; changed in place
        model: the model, whose head is written beside an encoder
        folder: an existing folder
        quantize: type of the stored weights
        int8_range: largest absolute value of int8 weights, 63 or 127
    """
    if quantize not in QUANTIZATIONS:
        raise UserError(f"quantize: expected one of {', '.join(QUANTIZATIONS)}, got {quantize!r}")
    if int8_range not in (SAFE_INT8, FULL_INT8):
        raise UserError(f"int8_range: expected {SAFE_INT8} or {FULL_INT8}, got {int8_range!r}")
    spec.validate()
    spec._alias_variables()
    if quantize == "int8":
        _quantize_int8(spec, int8_range)
    else:
        spec._quantize(quantize)
    spec.save(str(folder))
    head = head_tensors(model)
    if head:
        save_file(head, folder / HEAD_FILE, metadata={"format": "pt"})


def _quantize_int8(spec: Any, limit: int) -> None:
    """Replace matrices by int8 with one scale per row, as the engine does with a limit of 127."""
    model_spec = import_ctranslate2().specs.model_spec

    def quantize(layer: Any, name: str, value: Any) -> None:
        key = name.rsplit("/", 1)[-1]
        if not isinstance(value, model_spec.Variable) or not hasattr(layer, f"{key}_scale"):
            return
        rows = value.to("float32").numpy()
        largest = np.abs(rows).max(axis=1)
        scale = (limit / np.where(largest == 0, limit, largest)).astype(np.float32)
        weight = np.clip(np.rint(rows * scale[:, None]), -limit, limit).astype(np.int8)
        setattr(layer, key, model_spec.NumpyVariable(weight))
        setattr(layer, f"{key}_scale", model_spec.NumpyVariable(scale))

    model_spec.visit_spec(spec, quantize)
