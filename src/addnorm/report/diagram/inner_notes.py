"""Notes in the boxes of sub-layers: options inside attention and feed-forward, and random depth."""

from collections.abc import Mapping
from typing import Any

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.wirings.base import Wiring
from addnorm.wirings.decorator_base import Decorator
from addnorm.wirings.drop_path import DropPath
from addnorm.wirings.layer_drop import LayerDrop

Notes = Mapping[str, tuple[str, ...]]
"""Notes by kind of sub-layer: self, cross, ffn."""
OPTIONS = (
    *("qk_norm", "gate", "sink", "exclusive", "value_residual", "value_embed", "canon", "cap"),
    *("window", "kv_heads", "activation"),
)
"""Options that a diagram shows."""


def describe_options(options: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the notes of options inside sub-layers, fields of `Config`; defaults give none.

    >>> describe_options({"qk_norm": "rms_head", "gate": "element", "activation": "swiglu"})
    {'self': ('norm: query, key', 'gate: element'), 'cross': ('norm: query, key', \
'gate: element'), 'ffn': ('swiglu',)}
    """
    for name in options:
        if name not in OPTIONS:
            raise UserError(unknown_name_message("option of a diagram", name, OPTIONS))
    get = options.get
    canon = str(get("canon") or "")
    both = [
        "norm: query, key" if get("qk_norm", "none") != "none" else "",
        f"gate: {get('gate')}" if get("gate", "none") != "none" else "",
        f"sink: {get('sink')}" if get("sink", "none") != "none" else "",
        f"cap: {get('cap')}" if get("cap") else "",
    ]
    own = [
        "exclusive" if get("exclusive") else "",
        "+ values of layer 1" if get("value_residual", "none") != "none" else "",
        "+ value embedding" if get("value_embed") else "",
        f"window: {_format_window(get('window'))}" if get("window") else "",
        f"canon: {', '.join(place for place in canon if place in 'AB')}",
    ]
    ffn = [
        str(get("activation") or ""),
        f"canon: {', '.join(place for place in canon if place in 'CD')}",
    ]
    notes = {"self": both + own, "cross": both, "ffn": ffn}
    return {
        kind: tuple(text for text in texts if text and text != "canon: ")
        for kind, texts in notes.items()
    }


def describe_random_depth(wiring: Wiring) -> tuple[str, ...]:
    """Return the notes of decorators that drop branches or layers in training."""
    notes = []
    while isinstance(wiring, Decorator):
        if isinstance(wiring, DropPath):
            notes.append(f"drop path: up to {wiring.rate:g}")
        elif isinstance(wiring, LayerDrop):
            notes.append(f"layer drop: {wiring.rate:g}")
        wiring = wiring.inner
    return tuple(notes)


def _format_window(window: Any) -> str:
    sizes = window if isinstance(window, tuple | list) else (window,)
    return " / ".join("all" if size is None else str(size) for size in sizes)
