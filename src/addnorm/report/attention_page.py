"""The page of attention maps, with selectors for example, kind, layer and head.

The page holds every map as base64 text, one byte for each probability p: round(255 * sqrt(p)). The
square root gives small probabilities, which are most of them, the finer resolution.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.report.format import plural
from addnorm.report.html.page import render, write_page

KINDS = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
"""Kinds of attention, and which tokens are the queries (rows) and the keys (columns)."""
MAX_LEVEL = 255
MAX_LABEL_LENGTH = 80


def write_attention_page(path: Path, examples: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page of attention maps and return its path.

    Args:
        path: the file to write
        examples: mappings with the keys `target` (list of tokens), `source` (list of tokens, or
            None for models without one) and `maps`. `maps` has one or more of the keys encoder,
            decoder and cross; each value is a list over layers of (heads, queries, keys)
            probabilities. The encoder of a model without a source reads the target.

    Raises:
        UserError: if an example has no maps, an unknown kind, or a map of the wrong shape
    """
    return write_page(Path(path), render_attention_page(examples))


def render_attention_page(examples: Sequence[Mapping[str, Any]]) -> str:
    """Return the page as HTML; see `write_attention_page`."""
    if not examples:
        raise UserError(
            "attention maps: expected at least one example, got none; pass a line that is not empty"
        )
    encoded = [_encode_example(number, example) for number, example in enumerate(examples)]
    count = plural(len(encoded), "example")
    return render("attention.html.j2", title="Attention maps", count=count, examples=encoded)


def _encode_example(number: int, example: Mapping[str, Any]) -> dict[str, Any]:
    target = [str(token) for token in example["target"]]
    source = example.get("source")
    tokens = {"target": target, "source": target if source is None else [str(t) for t in source]}
    maps: dict[str, list[dict[str, Any]]] = {}
    for kind, layers in example["maps"].items():
        if kind not in KINDS:
            raise UserError(unknown_name_message("kind of attention", str(kind), KINDS))
        queries, keys = (len(tokens[side]) for side in KINDS[kind])
        for layer, values in enumerate(layers):
            location = f"example {number}, {kind}, layer {layer}"
            maps.setdefault(kind, []).append(_encode_map(values, (queries, keys), location))
    if not maps:
        raise UserError(f"example {number}: expected maps of {', '.join(KINDS)}, got none")
    sides = {kind: [tokens[side] for side in KINDS[kind]] for kind in maps}
    label = " ".join(tokens["source"])[:MAX_LABEL_LENGTH]
    return {"label": label, "tokens": sides, "maps": maps}


def _encode_map(values: Any, expected_shape: tuple[int, int], location: str) -> dict[str, Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float32).numpy()
    array = np.asarray(values, dtype=np.float32)
    if array.ndim != 3 or array.shape[1:] != expected_shape or not array.shape[0]:
        queries, keys = expected_shape
        raise UserError(
            f"{location}: expected a map of shape (heads, {queries}, {keys}), got {array.shape}"
        )
    # A query whose keys are all masked has NaN probabilities, which are drawn as zeros.
    probabilities = np.clip(np.nan_to_num(array, nan=0.0), 0.0, 1.0)
    levels = np.rint(np.sqrt(probabilities) * MAX_LEVEL).astype(np.uint8)
    return {"heads": int(array.shape[0]), "data": base64.b64encode(levels.tobytes()).decode()}
