"""What stands inside the usual sub-layers."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.sublayers import CrossAttention, FeedForward, SelfAttention
from addnorm.sublayers.base import check_bool, check_dropout, check_positive_int


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """The choices inside the usual sub-layers; `Encoder` and `Decoder` take them by keyword."""

    ffn_dim: int | None = None
    """Hidden features of the feed-forward; 4 * dim, or 8 / 3 * dim where it is gated, if None."""
    activation: str = "relu"
    """Its activation, see `FeedForward`."""
    kv_heads: int | None = None
    """Heads of keys and values; as many as `heads` if None."""
    head_dim: int | None = None
    """Features of a head; dim / heads if None."""
    qk_norm: str = "none"
    """Query-key norm of all attention."""
    bias: bool = True
    """Whether query, key and value have bias vectors, and whatever below is None."""
    out_bias: bool | None = None
    """Whether the attention's output has one."""
    ffn_bias: bool | None = None
    """Whether the feed-forward has them."""
    scale: float | None = None
    """Factor of query . key; 1 / sqrt(head_dim) if None."""
    cap: float | None = None
    """Soft bound of the attention's logits; none if None."""
    window: int | tuple[int | None, ...] | None = None
    """Tokens that self-attention sees at most; several take turns from layer to layer."""
    persistent: int = 0
    """Persistent vectors of self-attention."""
    attention_dropout: float = 0.0
    """Share of attention probabilities dropped in training."""
    activation_dropout: float = 0.0
    """Share of the feed-forward's hidden features dropped in training."""

    def __post_init__(self) -> None:
        if self.ffn_dim is not None:
            check_positive_int("ffn_dim", self.ffn_dim)
        if self.window == ():
            raise UserError("window is a number, or several that take turns, got none of them")
        if self.ffn_bias is not None:
            check_bool("ffn_bias", self.ffn_bias)
        check_dropout("attention_dropout", self.attention_dropout)
        check_dropout("activation_dropout", self.activation_dropout)

    @classmethod
    def from_options(cls, stack: str, options: dict[str, Any]) -> "LayerConfig":
        """From keywords; unknown ones are refused with the nearest that exist."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise UserError(unknown_name_message(f"option of {stack}", name, known))
        return cls(**options)

    def build_layer(
        self, number: int, kinds: tuple[str, ...], *, dim: int, heads: int, causal: bool
    ) -> list[nn.Module]:
        """The sub-layers of one layer, in the order of `kinds`: self, cross, ffn."""
        windows = self.window if isinstance(self.window, tuple) else (self.window,)
        attention: dict[str, Any] = {
            "kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "qk_norm": self.qk_norm,
            "bias": self.bias,
            "out_bias": self.out_bias,
            "scale": self.scale,
            "cap": self.cap,
            "dropout": self.attention_dropout,
        }
        ffn_bias = self.bias if self.ffn_bias is None else self.ffn_bias
        made: dict[str, Callable[[], nn.Module]] = {
            "self": lambda: SelfAttention(
                dim,
                heads,
                causal=causal,
                window=windows[number % len(windows)],
                persistent=self.persistent,
                **attention,
            ),
            "cross": lambda: CrossAttention(dim, heads, **attention),
            "ffn": lambda: FeedForward(
                dim,
                self.ffn_dim,
                activation=self.activation,
                bias=ffn_bias,
                dropout=self.activation_dropout,
            ),
        }
        return [made[kind]() for kind in kinds]
