"""What a wiring knows about its stack: frozen Python constants, resolved when a graph is traced."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from addnorm.core.calls import Call
from addnorm.core.errors import UserError, unknown_name_message

ROLES = ("encoder_only", "decoder_only", "encoder", "decoder")


@dataclass(frozen=True)
class Site:
    """The place of one sub-layer in a stack."""

    index: int
    """Number of the sub-layer in the whole stack, from 0."""
    layer: int
    """Number of its layer, from 0."""
    slot: int
    """Number inside its layer, from 0."""
    kind: str
    """What stands there: `self`, `cross`, `ffn`, or any word of the user's."""
    first: bool
    """Whether it is the first of its layer."""
    last: bool
    """Whether it is the last of its layer."""


@dataclass(frozen=True)
class Shape:
    """The widths inside a sub-layer, for norms and scales that stand in there."""

    inner: int
    """Features that its last matrix reads: heads * head_dim, or the feed-forward width."""
    hidden: int
    """Features its first matrices make: as `inner`, twice that when the feed-forward is gated."""
    heads: int = 0
    """Query heads; 0 where there are none."""
    key_heads: int = 0
    """Key and value heads."""
    head_dim: int = 0
    """Features of one head."""
    dim: int = 0
    """Features of the stream it was made for; 0 where it does not matter."""
    crosses: bool = False
    """Whether it attends to a memory."""
    causal: bool = False
    """Whether it hides later tokens."""


@dataclass(frozen=True)
class Plugs:
    """What a wiring puts *inside* a sub-layer: functions of one tensor, None for nothing."""

    query: Callable[[Any], Any] | None = None
    """On the projected queries, (B, H, L, K), before any rotation."""
    key: Callable[[Any], Any] | None = None
    """On the keys, likewise."""
    value: Callable[[Any], Any] | None = None
    """On the values, (B, H, L, K)."""
    match: Callable[[Any, Any], tuple[Any, Any]] | None = None
    """On rotated queries and keys together, right before their product."""
    heads: Callable[[Any], Any] | None = None
    """On what the heads return, (B, H, L, K), before they are joined."""
    hidden: Callable[[Any], Any] | None = None
    """On the feed-forward's first product, (B, L, hidden), before the activation."""
    inner: Callable[[Any], Any] | None = None
    """On what the last matrix reads, (B, L, inner)."""
    logit_scale: float | None = None
    """Factor of query . key in place of 1 / sqrt(head_dim)."""


@dataclass(frozen=True)
class Plan:
    """The facts of a stack from which depth rules are computed."""

    role: str
    """One of `encoder_only`, `decoder_only`, or `encoder` and `decoder` of a pair."""
    depth: int
    """Layers of this stack."""
    other_depth: int | None
    """Layers of the partner stack; None where there is none."""
    kinds: tuple[str, ...]
    """The sub-layers of one layer, in order."""
    dim: int
    """Features of the stream."""
    norm: Call
    """The norm that stands wherever the wiring wants one."""
    shapes: tuple[Shape | None, ...] = field(default=(), repr=False)
    """Widths inside each sub-layer, None for one that has no place for plugs."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UserError(unknown_name_message("role", str(self.role), ROLES))
        paired = self.role in ("encoder", "decoder")
        if paired and self.other_depth is None:
            raise UserError(
                f"role {self.role!r} is one half of an encoder-decoder and its depth rules "
                "need the other half's depth: "
                f"pass other_depth, or role '{self.role}_only'"
            )
        if not paired and self.other_depth is not None:
            raise UserError(
                f"role {self.role!r} stands alone, got other_depth={self.other_depth}; "
                f"leave other_depth out, or say role '{self.role.removesuffix('_only')}'"
            )
        for name, value in (
            ("depth", self.depth),
            ("dim", self.dim),
            ("other_depth", self.other_depth),
        ):
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < 1
            ):
                raise UserError(f"{name} must be a whole number from 1, got {value!r}")
        named = isinstance(self.kinds, tuple) and all(isinstance(kind, str) for kind in self.kinds)
        if not self.kinds or not named:
            raise UserError(
                "kinds must name the sub-layers of one layer, such as ('self', 'ffn'), got "
                f"{self.kinds!r}"
            )

    @property
    def per_layer(self) -> int:
        """Sub-layers in a layer."""
        return len(self.kinds)

    @property
    def causal(self) -> bool:
        """Whether a token must not learn anything of later ones."""
        hides = any(shape is not None and shape.causal for shape in self.shapes)
        return hides or self.role in ("decoder_only", "decoder")

    @property
    def encoder_depth(self) -> int | None:
        """Layers of the encoder of this pair, or of this encoder."""
        return self.depth if self.role.startswith("encoder") else self.other_depth

    @property
    def decoder_depth(self) -> int | None:
        """Layers of the decoder of this pair, or of this decoder."""
        return self.depth if self.role.startswith("decoder") else self.other_depth

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Every place of a sub-layer, in the order of the forward pass."""
        last = self.per_layer - 1
        return tuple(
            Site(layer * self.per_layer + slot, layer, slot, kind, slot == 0, slot == last)
            for layer in range(self.depth)
            for slot, kind in enumerate(self.kinds)
        )

    def sublayer_kind(self, site: Site) -> str:
        """What really stands at a site, `self`, `cross` or `ffn`, whatever the user calls it.

        A sub-layer that tells its widths tells this too; a plain module is what its kind says, and
        `ffn` if that is a word of the user's own.
        """
        shape = self.shape(site)
        if shape is None:
            return site.kind if site.kind in ("self", "cross") else "ffn"
        return "ffn" if not shape.heads else "cross" if shape.crosses else "self"

    def shape(self, site: Site) -> Shape | None:
        """Widths inside the sub-layer of a site; None if it has no place for plugs."""
        return self.shapes[site.index] if self.shapes else None
