"""Configuration of the sub-layers of `Encoder` and `Decoder`."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.sublayers import CrossAttention, FeedForward, MixtureOfExperts, SelfAttention
from addnorm.sublayers.activations import is_gated
from addnorm.sublayers.attention_options.canon import check_places
from addnorm.sublayers.attention_options.value_residual import VALUE_RESIDUALS
from addnorm.sublayers.base import check_bool, check_dropout, check_positive_int

EXPERT_OPTIONS = ("experts", "experts_per_token", "normalize_routes", "shared_ffn_dim")
INNER_OPTIONS = (
    *("gate", "sink", "exclusive", "value_residual", "value_embed", "canon"),
    *EXPERT_OPTIONS,
)
"""Options inside attention and feed-forward that few engines know."""


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """Options of attention and feed-forward; `Encoder` and `Decoder` take them by keyword."""

    ffn_dim: int | None = None
    """Hidden features of the feed-forward; if None 4 * dim, or 8 / 3 * dim if gated."""
    activation: str = "relu"
    """Activation of the feed-forward, see `FeedForward`."""
    kv_heads: int | None = None
    """Heads of keys and values; as many as `heads` if None."""
    head_dim: int | None = None
    """Features of a head; dim / heads if None."""
    qk_norm: str = "none"
    """Query-key norm of self-attention and cross-attention."""
    bias: bool = True
    """Whether query, key and value have biases; default of the next two options."""
    out_bias: bool | None = None
    """Whether the output projection of attention has a bias; `bias` if None."""
    ffn_bias: bool | None = None
    """Whether the feed-forward has biases; `bias` if None."""
    scale: float | None = None
    """Factor of query . key; 1 / sqrt(head_dim) if None."""
    base_head_dim: int | None = None
    """Features of a head in the base model of a scale; those of this model if None."""
    cap: float | None = None
    """Soft cap of the attention logits; none if None."""
    window: int | tuple[int | None, ...] | None = None
    """Tokens that self-attention sees at most; a tuple is cycled through layer by layer."""
    persistent: int = 0
    """Number of persistent keys and values of self-attention."""
    gate: str = "none"
    """Gate of the heads' outputs in all attention: none, element or head."""
    sink: str = "none"
    """Addend of the softmax's denominator in all attention: none, learned or off_by_one."""
    exclusive: bool = False
    """Whether self-attention returns nothing along a token's own value."""
    value_residual: str = "none"
    """Mixture of the values of self-attention with the first layer's: none, half, scalar, token."""
    value_embed: int | None = None
    """Rows of tables of values per token, in every second layer, the last included; None for none.
    The stack is then called with `ids`."""
    canon: str = ""
    """Places of Canon layers, such as "ABCD"; decoders only."""
    experts: int | None = None
    """Number of feed-forward networks per layer, of which a router chooses some for every token;
    one network without a router if None."""
    experts_per_token: int = 2
    """Experts that the router chooses for a token."""
    normalize_routes: bool = True
    """Whether the weights of the chosen experts are divided by their sum."""
    shared_ffn_dim: int | None = None
    """Hidden features of one more expert, gated, which every token uses; none if None."""
    attention_dropout: float = 0.0
    """Dropout rate of the attention probabilities."""
    activation_dropout: float = 0.0
    """Dropout rate of the feed-forward's hidden features."""

    def __post_init__(self) -> None:
        if self.ffn_dim is not None:
            check_positive_int("ffn_dim", self.ffn_dim)
        if self.window == ():
            raise UserError("window: expected an integer or a non-empty tuple, got ()")
        if self.ffn_bias is not None:
            check_bool("ffn_bias", self.ffn_bias)
        check_places(self.canon)
        self._check_experts()
        if self.value_residual not in VALUE_RESIDUALS:
            message = unknown_name_message(
                "value_residual", str(self.value_residual), VALUE_RESIDUALS
            )
            raise UserError(message)
        check_dropout("attention_dropout", self.attention_dropout)
        check_dropout("activation_dropout", self.activation_dropout)

    def _check_experts(self) -> None:
        if self.experts is not None:
            places = [place for place in self.canon if place in "CD"]
            if places:
                raise UserError(f"canon: expected A and B only with experts, got {self.canon!r}")
            return
        defaults = type(self).__dataclass_fields__
        for name in EXPERT_OPTIONS[1:]:
            if getattr(self, name) != defaults[name].default:
                raise UserError(
                    f"{name}: expected the default without experts, got {getattr(self, name)!r}; "
                    f"leave {name} out or set experts"
                )

    @property
    def attention_options(self) -> dict[str, Any]:
        """Options inside sub-layers that differ from their defaults; they decide what is computed
        from the same weights."""
        defaults = {name: type(self).__dataclass_fields__[name].default for name in INNER_OPTIONS}
        return {
            name: getattr(self, name)
            for name, default in defaults.items()
            if getattr(self, name) != default
        }

    @classmethod
    def from_options(cls, stack: str, options: dict[str, Any]) -> "LayerConfig":
        """Build from keyword options; raise a UserError with suggestions for an unknown one."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise UserError(unknown_name_message(f"option of {stack}", name, known))
        return cls(**options)

    def count_weights(self, kinds: tuple[str, ...], *, dim: int, heads: int) -> int:
        """Return the number of weights in the matrices of one layer, without building it."""
        head_dim = max(1, dim // heads) if self.head_dim is None else self.head_dim
        for name in ("head_dim", "kv_heads"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        attention = 2 * dim * head_dim * (heads + (self.kv_heads or heads))
        gates = 2 if is_gated(self.activation) else 1
        ffn = (1 + gates) * dim * (self.ffn_dim or -(-8 * dim // (1 + gates)))
        if self.experts is not None:
            check_positive_int("experts", self.experts)
            ffn = self.experts * (ffn + dim) + (1 + gates) * dim * (self.shared_ffn_dim or 0)
        return sum(ffn if kind == "ffn" else attention for kind in kinds)

    def build_layer(
        self,
        number: int,
        kinds: tuple[str, ...],
        *,
        dim: int,
        heads: int,
        causal: bool,
        depth: int,
    ) -> list[nn.Module]:
        """Build the sub-layers of layer `number`, in the order of `kinds`: self, cross, ffn."""
        if self.canon and not causal:
            raise UserError(f"canon: expected '' in an encoder, got {self.canon!r}")
        residual = "source" if self.value_residual != "none" and number == 0 else None
        windows = self.window if isinstance(self.window, tuple) else (self.window,)
        attention: dict[str, Any] = {
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "qk_norm": self.qk_norm,
            "bias": self.bias,
            "out_bias": self.out_bias,
            "scale": self.scale,
            "base_head_dim": self.base_head_dim,
            "cap": self.cap,
            "gate": self.gate,
            "sink": self.sink,
            "dropout": self.attention_dropout,
        }
        builders: dict[str, Callable[[], nn.Module]] = {
            "self": lambda: SelfAttention(
                dim,
                heads,
                causal=causal,
                window=windows[number % len(windows)],
                persistent=self.persistent,
                exclusive=self.exclusive,
                value_residual=residual or self.value_residual,
                value_embed=self.value_embed if (depth - 1 - number) % 2 == 0 else None,
                canon="".join(place for place in self.canon if place in "AB"),
                **attention,
            ),
            "cross": lambda: CrossAttention(dim, heads, **attention),
            "ffn": lambda: self._build_feed_forward(dim),
        }
        return [builders[kind]() for kind in kinds]

    def _build_feed_forward(self, dim: int) -> nn.Module:
        options: dict[str, Any] = {
            "activation": self.activation,
            "bias": self.bias if self.ffn_bias is None else self.ffn_bias,
            "dropout": self.activation_dropout,
        }
        if self.experts is None:
            canon = "".join(place for place in self.canon if place in "CD")
            return FeedForward(dim, self.ffn_dim, canon=canon, **options)
        return MixtureOfExperts(
            dim,
            self.ffn_dim,
            experts=self.experts,
            k=self.experts_per_token,
            normalize=self.normalize_routes,
            shared_hidden=self.shared_ffn_dim,
            **options,
        )
