"""Configuration of attention heads."""

from dataclasses import dataclass

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.sublayers.attention_options.output_gate import GATES
from addnorm.sublayers.base import (
    check_bool,
    check_dropout,
    check_positive_int,
    check_positive_number,
)
from addnorm.sublayers.qk_norm import registry as qk_norms

SINKS = ("none", "learned", "off_by_one")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Options that self-attention and cross-attention share; validated at construction."""

    dim: int
    """Features of the stream."""
    heads: int
    """Heads of the queries."""
    kv_heads: int | None = None
    """Heads of keys and values, each shared by a group of query heads; `heads` if None."""
    head_dim: int | None = None
    """Features of a head; dim / heads if None."""
    memory_dim: int | None = None
    """Features of the tokens that keys and values are projected from; dim if None."""
    bias: bool = True
    """Whether query, key and value have bias vectors."""
    out_bias: bool | None = None
    """Whether the output has one; as `bias` if None."""
    scale: float | None = None
    """Factor of query . key; 1 / sqrt(head_dim) if None (T5 has 1)."""
    base_head_dim: int | None = None
    """Features of a head in the base model of a scale, whose factor is then multiplied by
    base_head_dim / head_dim (muP); `head_dim` if None."""
    cap: float | None = None
    """Bound c of the logits, c * tanh(logit / c); none if None (Gemma 2 has 50)."""
    dropout: float = 0.0
    """Dropout rate of the attention probabilities."""
    qk_norm: str = "none"
    """Query-key norm: none, l2, cosine, rms, rms_head or layer_head."""
    persistent: int = 0
    """Number of learned keys and values per key head."""
    gate: str = "none"
    """Sigmoid gate of the heads' outputs: none, element or head."""
    sink: str = "none"
    """Addend of the softmax's denominator: none, learned per head, or off_by_one, which adds 1."""

    def __post_init__(self) -> None:
        for name in ("dim", "heads", "kv_heads", "head_dim", "memory_dim", "base_head_dim"):
            if name in ("dim", "heads") or getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        check_positive_int("persistent", self.persistent, min_value=0)
        check_dropout("dropout", self.dropout)
        check_bool("bias", self.bias)
        if self.out_bias is not None:
            check_bool("out_bias", self.out_bias)
        for name in ("scale", "cap"):
            if getattr(self, name) is not None:
                check_positive_number(name, getattr(self, name))
        for name, choices in (("gate", GATES), ("sink", SINKS)):
            if getattr(self, name) not in choices:
                raise UserError(unknown_name_message(name, str(getattr(self, name)), choices))
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        if self.heads % kv_heads:
            raise UserError(f"kv_heads: expected a divisor of heads={self.heads}, got {kv_heads}")
        if self.persistent and qk_norms.resolve(self.qk_norm).name != "none":
            raise UserError(
                f"persistent: expected 0 with qk_norm={self.qk_norm!r}, got {self.persistent}; no "
                "paper defines a query-key norm of persistent keys"
            )


def split_dim(dim: int, heads: int) -> int:
    """Return dim / heads; raise a UserError unless `heads` divides `dim`."""
    if dim % heads:
        raise UserError(
            f"heads: expected a divisor of dim={dim}, got {heads}; change it or pass head_dim"
        )
    return dim // heads
