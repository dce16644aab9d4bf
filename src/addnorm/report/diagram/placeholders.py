"""Sub-layers for the picture: they have a real one's places for plugs, and no weights."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from addnorm.core.plan import Plugs, Shape
from addnorm.norms.base import Norm
from addnorm.sublayers.base import Sublayer

TITLES = {
    "self": "Self-attention",
    "rows": "Attention between rows",
    "cross": "Cross-attention",
    "ffn": "Feed-forward",
}
NUM_HEADS = 2


class PlaceholderSublayer(Sublayer):
    """A sub-layer of some kind; calls what a wiring puts inside it, to see whether it is a norm."""

    def __init__(self, kind: str, dim: int) -> None:
        super().__init__()
        self.kind, self.dim = kind, dim
        self.title = TITLES.get(kind, kind)
        self.plug_kinds: dict[str, str] = {}

    @property
    def shape(self) -> Shape:
        """As wide inside as outside."""
        if self.kind == "ffn":
            return Shape(inner=self.dim, hidden=self.dim)
        return Shape(self.dim, self.dim, NUM_HEADS, NUM_HEADS, self.dim // NUM_HEADS)

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """It has no weights."""
        return iter(())

    @property
    def note(self) -> str:
        """What stands inside, in words."""
        norms = [place for place, what in self.plug_kinds.items() if what == "norm"]
        scales = [place for place, what in self.plug_kinds.items() if what == "scale"]
        said = [f"{'norm' if norms_ else 'scale'}: {', '.join(places)}"
                for norms_, places in ((True, norms), (False, scales)) if places]  # fmt: skip
        return "; ".join(said)

    def forward(self, x: Tensor, plugs: Plugs) -> Tensor:
        """Something of the same shape; every plug is called once."""
        self.plug_kinds = {}
        for place in fields(plugs):
            plug = getattr(plugs, place.name)
            if callable(plug):
                self.plug_kinds[place.name] = self._classify_plug(place.name, plug, x)
        return x.tanh()

    def _classify_plug(self, name: str, plug: Callable[..., Any], x: Tensor) -> str:
        heads = x.view(*x.shape[:-1], NUM_HEADS, -1).transpose(-2, -3)
        given = x if name in ("hidden", "inner") else heads
        with _NormCounter() as listening:
            plug(given, given) if name == "match" else plug(given)
        return "norm" if listening.norms else "scale"


class CrossPlaceholderSublayer(PlaceholderSublayer):
    """One that also reads a memory."""

    def forward(self, x: Tensor, plugs: Plugs, memory: Tensor) -> Tensor:  # type: ignore[override]
        """Something of the same shape that depends on the memory."""
        return super().forward(x, plugs) + memory.mean(-2, keepdim=True)


class _NormCounter:
    """Counts the norms that are called."""

    def __enter__(self) -> "_NormCounter":
        self.norms = 0
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._count_norm)
        return self

    def __exit__(self, *exc: object) -> None:
        self._hook.remove()

    def _count_norm(self, module: torch.nn.Module, args: Any) -> None:
        self.norms += isinstance(module, Norm)


def build_sublayers(kinds: tuple[str, ...], depth: int, dim: int) -> list[PlaceholderSublayer]:
    """One for every site of a stack."""
    make = {"cross": CrossPlaceholderSublayer}
    return [make.get(kind, PlaceholderSublayer)(kind, dim) for _ in range(depth) for kind in kinds]
