"""Query-key norms: normalization of queries and keys, which bounds the logits of attention.

The published forms are different functions: over all heads or per head, with learned gains or with
a learned factor of the logits. Each has a name of its own here.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.registry import MAX_COUNT, Positive, Registry
from addnorm.norms.base import make_norm, statistics_dtype
from addnorm.norms.statistics import l2_normalize

registry: "Registry[QueryKeyNorm]" = Registry("query-key norm")
register = registry.register

EPS = 1e-6
Length = Annotated[int, Field(ge=2, le=MAX_COUNT)]


class QueryKeyNorm(nn.Module, ABC):
    """Token-wise maps of queries and of keys, applied before any rotation.

    q: (B, heads, L, K), or (B, L, heads * K) if `all_heads`
    k: (B, key heads, L, K), or (B, L, key heads * K) if `all_heads`
    """

    all_heads: bool = False
    """Whether it acts on all heads together, before they are split."""
    logit_scale: float | None = None
    """Factor of query . key; None for 1 / sqrt(head_dim)."""
    key_bias: bool = True
    """Whether the key matrix may have a bias."""

    def __init__(self, heads: int, key_heads: int, head_dim: int) -> None:
        super().__init__()

    @abstractmethod
    def query(self, q: Tensor) -> Tensor:
        """Normalize the queries."""

    @abstractmethod
    def key(self, k: Tensor) -> Tensor:
        """Normalize the keys."""

    def reset_parameters(self) -> None:
        """Reset scales and gains to their start values."""


@register(
    Card(
        name="none",
        title="No query-key norm",
        formula="logit = q . k / sqrt(head_dim)",
        paper="Vaswani et al., Attention Is All You Need, 2017, arXiv 1706.03762",
        summary="Logits without a bound, as in the original.",
    )
)
class NoQueryKeyNorm(QueryKeyNorm):
    """Leave queries and keys unchanged."""

    def query(self, q: Tensor) -> Tensor:
        return q

    def key(self, k: Tensor) -> Tensor:
        return k


@register(
    Card(
        name="l2",
        title="QKNorm",
        formula="logit = g * (q / |q|) . (k / |k|)",
        paper="Henry et al., Query-Key Normalization for Transformers, 2020, arXiv 2010.04245",
        summary="Cosine similarity times one learned factor for all heads.",
    )
)
class L2QueryKeyNorm(QueryKeyNorm):
    """Cosine of query and key times one learned factor.

    logit = g * (q / |q|) . (k / |k|)

    q, k: (B, heads, L, K)
    g: scalar, starts at log2(length ** 2 - length)
    length: what 97.5 % of the training sequences do not exceed

    Henry et al. 2020, section 3. |logit| <= g, and the size of the query and key matrices does not
    matter.
    """

    logit_scale = 1.0

    # NOTE[DIFF]: vectors are divided by their length or 1e-6, whichever is larger (released code:
    # 1e-12), which bounds the gradient near a zero vector; a zero vector itself gets none.
    def __init__(self, heads: int, key_heads: int, head_dim: int, *, length: Length = 75) -> None:
        super().__init__(heads, key_heads, head_dim)
        self.length = length
        self.g = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Large enough to select one token out of `length`.
        nn.init.constant_(self.g, math.log2(self.length**2 - self.length))

    def query(self, q: Tensor) -> Tensor:
        return (self.g * _l2_normalize(q)).to(q.dtype)

    def key(self, k: Tensor) -> Tensor:
        return _l2_normalize(k).to(k.dtype)


@register(
    Card(
        name="cosine",
        title="Scaled cosine attention",
        formula="logit = min(exp(s_head), 100) * (q / |q|) . (k / |k|)",
        paper=(
            "Liu et al., Swin Transformer V2: Scaling Up Capacity and Resolution, 2021, arXiv "
            "2111.09883"
        ),
        summary="Cosine similarity times a learned factor per head, at most 100.",
    )
)
class CosineQueryKeyNorm(QueryKeyNorm):
    """Cosine of query and key times a learned factor for each head.

    logit = exp(min(s, log 100)) * (q / |q|) . (k / |k|)

    q, k: (B, heads, L, K)
    s: (heads, 1, 1), starts at log 10

    Liu et al. 2021, section 3.2 and the released code, whose key matrix has no bias.
    """

    logit_scale = 1.0
    key_bias = False

    # NOTE[DIFF]: vectors are divided by their length or 1e-6, whichever is larger (released code:
    # 1e-12), which bounds the gradient near a zero vector; a zero vector itself gets none.
    def __init__(self, heads: int, key_heads: int, head_dim: int) -> None:
        super().__init__(heads, key_heads, head_dim)
        self.s = nn.Parameter(torch.empty(heads, 1, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.s, math.log(10))

    def query(self, q: Tensor) -> Tensor:
        return (self.s.clamp(max=math.log(100)).exp() * _l2_normalize(q)).to(q.dtype)

    def key(self, k: Tensor) -> Tensor:
        return _l2_normalize(k).to(k.dtype)


class _PairedNorms(QueryKeyNorm):
    """A norm of the catalogue on queries and one on keys."""

    def __init__(self, norm: str, query_dim: int, key_dim: int) -> None:
        nn.Module.__init__(self)
        self.query_norm = make_norm(norm, query_dim)
        self.key_norm = make_norm(norm, key_dim)

    def query(self, q: Tensor) -> Tensor:
        return self.query_norm(q)

    def key(self, k: Tensor) -> Tensor:
        return self.key_norm(k)

    def reset_parameters(self) -> None:
        self.query_norm.reset_parameters()
        self.key_norm.reset_parameters()


@register(
    Card(
        name="rms",
        title="RMS query-key norm over all heads",
        formula="logit = q' . k' / sqrt(head_dim), (q', k') = RMSNorm of all heads together",
        paper="OLMo Team, 2 OLMo 2 Furious, 2024, arXiv 2501.00656",
        summary="One gain per feature over all heads, which share one statistic.",
    )
)
class WholeRMS(_PairedNorms):
    """RMSNorm of the projected width before it is split into heads.

    logit = RMS(q)_head . RMS(k)_head / sqrt(K)

    q: (B, L, heads * K), with a gain each, starting at 1
    k: (B, L, key heads * K), likewise

    OLMo Team 2024, section 2.1.
    """

    all_heads = True

    def __init__(self, heads: int, key_heads: int, head_dim: int, *, eps: Positive = 1e-6) -> None:
        super().__init__(f"rms(eps={eps!r})", heads * head_dim, key_heads * head_dim)


@register(
    Card(
        name="rms_head",
        title="RMS query-key norm in each head",
        formula="logit = RMSNorm(q) . RMSNorm(k) / sqrt(head_dim)",
        paper="Qwen Team, Qwen3 Technical Report, 2025, arXiv 2505.09388",
        summary="Every head normalized by itself with a gain that all heads share; also Gemma 3.",
    )
)
class HeadRMS(_PairedNorms):
    """RMSNorm of each head's query and key.

    logit = RMS(q) . RMS(k) / sqrt(K)

    q, k: (B, heads, L, K), with a gain of (K) each, starting at 1, shared by the heads
    gain: with "one_plus" the gain is 1 + weight, as in Gemma 3; "none" has none, as nanochat

    Qwen Team 2025, section 2; Gemma Team, Gemma 3 Technical Report, 2025, arXiv 2503.19786.
    """

    def __init__(
        self,
        heads: int,
        key_heads: int,
        head_dim: int,
        *,
        eps: Positive = 1e-6,
        gain: Literal["plain", "one_plus", "none"] = "plain",
    ) -> None:
        options = "affine=False" if gain == "none" else f"gain={gain}"
        super().__init__(f"rms(eps={eps!r}, {options})", head_dim, head_dim)


@register(
    Card(
        name="layer_head",
        title="LayerNorm of queries and keys in each head",
        formula="logit = LayerNorm(q) . LayerNorm(k) / sqrt(head_dim)",
        paper=(
            "Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters, 2023, arXiv "
            "2302.05442"
        ),
        summary="Kept the logits of ViT-22B finite; LayerNorm without bias.",
    )
)
class HeadLayer(_PairedNorms):
    """LayerNorm of each head's query and key, without bias.

    logit = LN(q) . LN(k) / sqrt(K)

    q, k: (B, heads, L, K), with a gain of (K) each, starting at 1, shared by the heads

    Dehghani et al. 2023, section 2.
    """

    # NOTE[DIFF]: the paper writes no eps; 1e-6 is that of its code base (flax).
    def __init__(self, heads: int, key_heads: int, head_dim: int, *, eps: Positive = 1e-6) -> None:
        super().__init__(f"layer(eps={eps!r}, bias=False)", head_dim, head_dim)


def _l2_normalize(x: Tensor) -> Tensor:
    """Return x / max(|x|, EPS) in float32 or float64."""
    return l2_normalize(x.to(statistics_dtype(x)), eps=EPS)
