"""The plan of a stack: depth, role, sub-layers and widths.

A wiring computes its constants from the plan (DeepNorm's alpha depends on the depth, for example).
All fields are plain Python values, so `torch.compile` treats them as constants.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from addnorm.core.calls import Call
from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.validation import MAX_DEPTH, MAX_WIDTH, check_at_most

ROLES = ("encoder_only", "decoder_only", "encoder", "decoder")


@dataclass(frozen=True)
class Site:
    """Position of one sub-layer in a stack."""

    index: int
    """Index of the sub-layer in the stack, from 0."""
    layer: int
    """Index of its layer, from 0."""
    slot: int
    """Index inside its layer, from 0."""
    kind: str
    """Kind of the sub-layer: `self`, `cross`, `ffn`, or a name chosen by the user."""
    first: bool
    """Whether it is the first sub-layer of its layer."""
    last: bool
    """Whether it is the last sub-layer of its layer."""


@dataclass(frozen=True)
class Shape:
    """Widths inside a sub-layer, for the norms and scales that a wiring puts there."""

    inner: int
    """Input features of its last matrix: heads * head_dim, or the feed-forward width."""
    hidden: int
    """Output features of its first matrices: `inner`, or twice that in a gated feed-forward."""
    heads: int = 0
    """Query heads; 0 for a sub-layer without attention."""
    key_heads: int = 0
    """Key and value heads."""
    head_dim: int = 0
    """Features per head."""
    dim: int = 0
    """Features of the stream that it expects; 0 for any."""
    crosses: bool = False
    """Whether it attends to a memory (cross-attention)."""
    causal: bool = False
    """Whether it masks later tokens."""


@dataclass(frozen=True)
class Plugs:
    """Functions that a wiring applies *inside* a sub-layer; None leaves the tensor unchanged."""

    query: Callable[[Any], Any] | None = None
    """Applied to the projected queries, (B, H, L, K), before rotary positions."""
    key: Callable[[Any], Any] | None = None
    """Applied to the projected keys, (B, H, L, K), before rotary positions."""
    value: Callable[[Any], Any] | None = None
    """Applied to the values, (B, H, L, K)."""
    match: Callable[[Any, Any], tuple[Any, Any]] | None = None
    """Applied to queries and keys together, directly before their product."""
    heads: Callable[[Any], Any] | None = None
    """Applied to the outputs of the heads, (B, H, L, K), before they are concatenated."""
    hidden: Callable[[Any], Any] | None = None
    """Applied to the first projection of the feed-forward, (B, L, hidden)."""
    inner: Callable[[Any], Any] | None = None
    """Applied to the input of the last projection, (B, L, inner)."""
    logit_scale: float | None = None
    """Factor of query . key; None for 1 / sqrt(head_dim)."""


@dataclass(frozen=True)
class Plan:
    """Facts about a stack that a wiring computes its constants from."""

    role: str
    """`encoder_only`, `decoder_only`, or `encoder` and `decoder` of a pair of stacks."""
    depth: int
    """Number of layers."""
    other_depth: int | None
    """Number of layers of the other stack of a pair; None for a single stack."""
    kinds: tuple[str, ...]
    """Kinds of the sub-layers of one layer, in order."""
    dim: int
    """Features of the stream."""
    norm: Call
    """The norm that the wiring uses."""
    shapes: tuple[Shape | None, ...] = field(default=(), repr=False)
    """Widths inside each sub-layer; None for one that does not support plugs."""
    base_depth: int | None = None
    """Number of layers of the base model of a scale with a depth rule; None without one."""

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UserError(unknown_name_message("role", str(self.role), ROLES))
        paired = self.role in ("encoder", "decoder")
        if paired and self.other_depth is None:
            raise UserError(
                f"other_depth: expected the depth of the other stack for role {self.role!r}, got "
                f"None; pass it, or use role '{self.role}_only'"
            )
        if not paired and self.other_depth is not None:
            raise UserError(
                f"other_depth: expected None for role {self.role!r}, got {self.other_depth}; "
                f"remove it, or use role '{self.role.removesuffix('_only')}'"
            )
        for name, value in (
            ("depth", self.depth),
            ("dim", self.dim),
            ("other_depth", self.other_depth),
        ):
            if value is not None and (
                not isinstance(value, int) or isinstance(value, bool) or value < 1
            ):
                raise UserError(f"{name}: expected a whole number from 1, got {value!r}")
            if value is not None:
                check_at_most(name, value, MAX_WIDTH if name == "dim" else MAX_DEPTH)
        are_names = isinstance(self.kinds, tuple) and all(
            isinstance(kind, str) for kind in self.kinds
        )
        if not self.kinds or not are_names:
            raise UserError(
                "kinds: expected a tuple of the sub-layers of one layer, such as ('self', 'ffn'), "
                f"got {self.kinds!r}"
            )

    @property
    def at_base(self) -> "Plan":
        """The plan from which constants and initial weights that depend on the depth are computed.

        It has the depth of the base model if a scale has one; else it is this plan.
        """
        if self.base_depth is None:
            return self
        other = None if self.other_depth is None else self.base_depth
        return replace(self, depth=self.base_depth, other_depth=other, base_depth=None, shapes=())

    @property
    def per_layer(self) -> int:
        """Number of sub-layers per layer."""
        return len(self.kinds)

    @property
    def causal(self) -> bool:
        """Whether an output must not depend on later tokens."""
        has_causal_mask = any(shape is not None and shape.causal for shape in self.shapes)
        return has_causal_mask or self.role in ("decoder_only", "decoder")

    @property
    def encoder_depth(self) -> int | None:
        """Number of layers of the encoder; None for a decoder without one."""
        return self.depth if self.role.startswith("encoder") else self.other_depth

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """All sites, in the order of the forward pass."""
        last = self.per_layer - 1
        return tuple(
            Site(layer * self.per_layer + slot, layer, slot, kind, slot == 0, slot == last)
            for layer in range(self.depth)
            for slot, kind in enumerate(self.kinds)
        )

    def sublayer_kind(self, site: Site) -> str:
        """Return `self`, `cross` or `ffn` for a site, whatever name the user gave its kind.

        The shape of the sub-layer decides. Without a shape the kind decides, and a name that is
        neither `self` nor `cross` counts as `ffn`.
        """
        shape = self.shape(site)
        if shape is None:
            return site.kind if site.kind in ("self", "cross") else "ffn"
        return "ffn" if not shape.heads else "cross" if shape.crosses else "self"

    def shape(self, site: Site) -> Shape | None:
        """Return the widths inside the sub-layer of a site; None if it does not support plugs."""
        return self.shapes[site.index] if self.shapes else None
