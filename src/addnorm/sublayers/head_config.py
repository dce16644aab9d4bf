"""What can be chosen about the heads of attention."""

from dataclasses import dataclass

from addnorm.core.errors import UserError
from addnorm.sublayers.base import check_bool, check_dropout, check_positive_int
from addnorm.sublayers.qk_norm import registry as qk_norms


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The choices that self-attention and cross-attention share; checked when made."""

    dim: int
    """Features of the stream."""
    heads: int
    """Heads of the queries."""
    kv_heads: int | None = None
    """Heads of keys and values, each serving a group of queries; as many as `heads` if None."""
    head_dim: int | None = None
    """Features of a head; dim / heads if None."""
    memory_dim: int | None = None
    """Features of what keys and values are made from; dim if None."""
    bias: bool = True
    """Whether query, key and value have bias vectors."""
    out_bias: bool | None = None
    """Whether the output has one; as `bias` if None."""
    scale: float | None = None
    """Factor of query . key; 1 / sqrt(head_dim) if None (T5 has 1)."""
    cap: float | None = None
    """Bound c of the logits, c * tanh(logit / c); none if None (Gemma 2 has 50)."""
    dropout: float = 0.0
    """Share of probabilities dropped in training."""
    qk_norm: str = "none"
    """A form of `sublayers/qk_norm.py`: none, l2, cosine, rms, rms_head, layer_head."""
    persistent: int = 0
    """Keys and values for each key head that are parameters."""

    def __post_init__(self) -> None:
        for name in ("dim", "heads", "kv_heads", "head_dim", "memory_dim"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        check_positive_int("persistent", self.persistent, min_value=0)
        check_dropout("dropout", self.dropout)
        check_bool("bias", self.bias)
        if self.out_bias is not None:
            check_bool("out_bias", self.out_bias)
        for name in ("scale", "cap"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UserError(f"{name} must be a positive number, got {value!r}")
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        if self.heads % kv_heads:
            raise UserError(
                f"{self.heads} heads cannot share {kv_heads} key heads evenly; wanted kv_heads "
                "that divides heads"
            )
        if self.persistent and qk_norms.resolve(self.qk_norm).name != "none":
            raise UserError(
                f"persistent={self.persistent} with qk_norm={self.qk_norm!r}: no paper says how a "
                "query-key norm treats persistent keys; leave out one of them"
            )


def split_dim(dim: int, heads: int) -> int:
    """Features of a head, if `heads` divides `dim`."""
    if dim % heads:
        raise UserError(
            f"dim {dim} cannot be split into {heads} heads; wanted heads that divide dim, or a "
            "head_dim of its own"
        )
    return dim // heads
