"""The page of attention maps: pick an example, a kind, a layer and a head, and point at a cell."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.report.html.page import render, write_page

KINDS = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("target", "source"),
}
"""Kinds of attention, and whose tokens stand at the rows (who looks) and columns (what is seen)."""
MAX_LEVEL = 255


def write_attention_page(path: Path, examples: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page of attention maps, whole or not at all.

    examples: each has `target`, a list of tokens, `source`, the same or None, and `maps`: for
    encoder, decoder or cross a list over layers of (heads, rows, columns) probabilities. The
    encoder of a model without a source reads the target.
    """
    return write_page(Path(path), render_attention_page(examples))


def render_attention_page(examples: Sequence[Mapping[str, Any]]) -> str:
    """The page as text; probabilities are kept as bytes, finest where they are small."""
    if not examples:
        raise UserError("there is no attention to draw: got no example, wanted one or more")
    plain = [_encode_example(number, example) for number, example in enumerate(examples)]
    count = f"{len(plain)} example{'s' if len(plain) > 1 else ''}"
    return render("attention.html.j2", title="Attention maps", count=count, examples=plain)


def _encode_example(number: int, example: Mapping[str, Any]) -> dict[str, Any]:
    target = [str(token) for token in example["target"]]
    source = example.get("source")
    tokens = {"target": target, "source": target if source is None else [str(t) for t in source]}
    maps: dict[str, list[dict[str, Any]]] = {}
    for kind, layers in example["maps"].items():
        if kind not in KINDS:
            raise UserError(unknown_name_message("kind of attention", str(kind), KINDS))
        rows, columns = (len(tokens[side]) for side in KINDS[kind])
        for layer, values in enumerate(layers):
            where = f"example {number}, {kind}, layer {layer}"
            maps.setdefault(kind, []).append(_encode_map(values, (rows, columns), where))
    if not maps:
        raise UserError(f"example {number} has no attention map; wanted {', '.join(KINDS)}")
    sides = {kind: [tokens[side] for side in KINDS[kind]] for kind in maps}
    return {"told": " ".join(tokens["source"])[:80], "tokens": sides, "maps": maps}


def _encode_map(values: Any, expected_shape: tuple[int, int], location: str) -> dict[str, Any]:
    """A map as text: a byte for each probability p, sqrt(p) * 255 rounded."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float32).numpy()
    array = np.asarray(values, dtype=np.float32)
    if array.ndim != 3 or array.shape[1:] != expected_shape or not array.shape[0]:
        raise UserError(
            f"{location}: got a map of shape {array.shape}, wanted (heads, {expected_shape[0]}, {expected_shape[1]}), "
            "a row and a column for each token"
        )
    # A token that may look at nothing has no probabilities (nan): drawn as none.
    share = np.clip(np.nan_to_num(array, nan=0.0), 0.0, 1.0)
    data = np.rint(np.sqrt(share) * MAX_LEVEL).astype(np.uint8)
    return {"heads": int(array.shape[0]), "data": base64.b64encode(data.tobytes()).decode()}
