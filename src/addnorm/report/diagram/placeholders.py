"""Sub-layers without weights, from which the recorded stack is built.

A diagram shows the wiring, not what a sub-layer computes, so a placeholder computes tanh(x). A
wiring may plug norms or scales into a sub-layer (sub-LN, query-key norms). A placeholder has the
same plugs as a real sub-layer, calls each of them once, and notes whether it contains a norm:

    >>> from addnorm.norms import make_norm
    >>> attention = PlaceholderSublayer("self", dim=8)  # two heads of four features
    >>> norm = make_norm("rms", 4)
    >>> _ = attention(torch.ones(1, 3, 8), Plugs(query=norm, key=norm, value=lambda v: 2 * v))
    >>> attention.title, attention.note
    ('Self-attention', 'norm: query, key; scale: value')
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.plan import Plugs, Shape
from addnorm.norms.base import Norm
from addnorm.sublayers.base import Sublayer
from addnorm.wirings.base import Wiring
from addnorm.wirings.decorator_base import Decorator
from addnorm.wirings.drop_path import DropPath
from addnorm.wirings.layer_drop import LayerDrop

TITLES = {
    "self": "Self-attention",
    "rows": "Attention between rows",
    "cross": "Cross-attention",
    "ffn": "Feed-forward",
}
NUM_HEADS = 2
Notes = Mapping[str, tuple[str, ...]]
"""Notes by kind of sub-layer: self, cross, ffn."""
OPTIONS = (
    *("qk_norm", "gate", "sink", "exclusive", "value_residual", "value_embed", "canon", "cap"),
    *("window", "kv_heads", "activation", "experts", "experts_per_token"),
)
"""Options that a diagram shows."""


class PlaceholderSublayer(Sublayer):
    """A sub-layer of a given kind that reports its plugs."""

    def __init__(self, kind: str, dim: int, notes: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.kind, self.dim, self.notes = kind, dim, notes
        self.title = TITLES.get(kind, kind)
        self.plug_kinds: dict[str, str] = {}

    @property
    def shape(self) -> Shape:
        if self.kind == "ffn":
            return Shape(inner=self.dim, hidden=self.dim)
        return Shape(self.dim, self.dim, NUM_HEADS, NUM_HEADS, self.dim // NUM_HEADS)

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())

    @property
    def note(self) -> str:
        """The plugs of the last forward pass, such as "norm: query, key", then other notes."""
        names_by_kind: dict[str, list[str]] = {"norm": [], "scale": []}
        for name, kind in self.plug_kinds.items():
            names_by_kind[kind].append(name)
        plugs = [f"{kind}: {', '.join(names)}" for kind, names in names_by_kind.items() if names]
        return "; ".join(dict.fromkeys((*plugs, *self.notes)))

    def forward(self, x: Tensor, plugs: Plugs) -> Tensor:
        self.plug_kinds = {}
        for field in fields(plugs):
            plug = getattr(plugs, field.name)
            if callable(plug):
                self.plug_kinds[field.name] = self._classify_plug(field.name, plug, x)
        return x.tanh()

    def _classify_plug(self, name: str, plug: Callable[..., Any], x: Tensor) -> str:
        heads = x.view(*x.shape[:-1], NUM_HEADS, -1).transpose(-2, -3)
        example = x if name in ("hidden", "inner") else heads
        with _NormCounter() as counter:
            plug(example, example) if name == "match" else plug(example)
        return "norm" if counter.num_norms else "scale"


class CrossPlaceholderSublayer(PlaceholderSublayer):
    """A placeholder that also reads a memory."""

    def forward(self, x: Tensor, plugs: Plugs, memory: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, plugs) + memory.mean(-2, keepdim=True)


class _NormCounter:
    """Counts calls of norms while it is active."""

    def __enter__(self) -> "_NormCounter":
        self.num_norms = 0
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._count_norm)
        return self

    def __exit__(self, *exc: object) -> None:
        self._hook.remove()

    def _count_norm(self, module: torch.nn.Module, args: Any) -> None:
        self.num_norms += isinstance(module, Norm)


def build_sublayers(
    kinds: tuple[str, ...], depth: int, dim: int, notes: Notes | None = None
) -> list[PlaceholderSublayer]:
    """Return one placeholder for each site of a stack."""
    classes = {"cross": CrossPlaceholderSublayer}
    return [
        classes.get(kind, PlaceholderSublayer)(kind, dim, (notes or {}).get(kind, ()))
        for _ in range(depth)
        for kind in kinds
    ]


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
        f"key heads: {get('kv_heads')}" if get("kv_heads") else "",
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
        f"{get('experts_per_token', 2)} of {get('experts')} experts" if get("experts") else "",
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
