"""HybridNorm: norms on queries, keys and values in attention, Post-LN around the feed-forward."""

from typing import Literal

from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Plugs, Site
from addnorm.wirings.base import Branch, State, Wiring, register


@register(
    Card(
        name="hybrid_norm",
        title="HybridNorm",
        formula="x <- x + Attn_qkv_norm(x); u = N(x), x <- u + FFN(u); y = N_final(x)",
        paper=(
            "Zhuo et al., HybridNorm: Towards Stable and Efficient Transformer Training via Hybrid "
            "Normalization, 2025, arXiv 2503.04598"
        ),
        summary="Pre-LN's stability from the norms inside attention, Post-LN's strength outside.",
        undefined="The paper has no cross-attention; it is treated like self-attention here.",
    )
)
class HybridNorm(Wiring):
    """Attention without a norm on the stream, feed-forward with a normalized skip.

    x_next = x + Attn(x), its queries, keys and values normalized head by head
    u = N(x), x_next = u + FFN(u)
    y = N_final(x)      after the last site

    x, u: (..., dim) the stream, raw and normalized
    N: one norm per feed-forward, and N_final
    N_q, N_k, N_v: one norm of head_dim features each per attention, shared by its heads
    out, ffn_out: start times 1 / sqrt(sites); all weights N(0, 2 / (5 dim)), cut at 3 deviations

    Zhuo et al. 2025, section 3. first=pre is HybridNorm*: the first layer is Pre-LN, with the
    norms inside attention too.
    """

    scheme = "megatron"

    def __init__(self, plan: Plan, *, first: Literal["hybrid", "pre"] = "hybrid") -> None:
        super().__init__(plan)
        self.first = first
        self.norms = nn.ModuleDict(
            {str(site.index): self.make_norm() for site in plan.sites if self._has_input_norm(site)}
        )
        self.head_norms = nn.ModuleDict(
            {
                f"{part}_{site.index}": self.make_norm(shape.head_dim)
                for site, shape in self.pluggable_sites()
                if shape.heads
                for part in ("query", "key", "value")
            }
        )
        self.final_norm = self.make_norm()

    def _is_pre_norm(self, site: Site) -> bool:
        return self.first == "pre" and site.layer == 0

    def _has_input_norm(self, site: Site) -> bool:
        return self.plan.sublayer_kind(site) == "ffn" or self._is_pre_norm(site)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # A feed-forward reads the normalized stream, and its skip carries it too.
        (x,) = state
        if not self._has_input_norm(site):
            return x, state
        u = self.bind(self.norms[str(site.index)])(x)
        return u, (state if self._is_pre_norm(site) else (u,))

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        return (state[0] + branch,)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])

    def plugs(self, site: Site) -> Plugs:
        if f"query_{site.index}" not in self.head_norms:
            return Plugs()
        own = (
            self._mask if self.plan.sublayer_kind(site) == "self" else None
        )  # a memory has its own
        norms = self.head_norms
        return Plugs(
            query=self._norm_over_heads(norms[f"query_{site.index}"], self._mask),
            key=self._norm_over_heads(norms[f"key_{site.index}"], own),
            value=self._norm_over_heads(norms[f"value_{site.index}"], own),
        )

    def _norm_over_heads(self, norm: nn.Module, mask: Tensor | None) -> Branch:
        """Return a norm of (B, H, L, K) in which heads share the mask and condition of a token."""
        cond = self._cond
        if mask is None and cond is None:
            return norm

        def normalize(x: Tensor) -> Tensor:
            valid = None if mask is None else mask.unsqueeze(-2).expand(x.shape[:-1])
            each = cond
            if cond is not None and cond.ndim == 3:
                each = cond.unsqueeze(1).expand(-1, x.shape[1], -1, -1)
            return norm(x, mask=valid, cond=each)

        return normalize

    def gain(self, role: str, site: Site | None = None) -> float:
        # Output matrices shrink with the number of additions.
        return len(self.plan.at_base.sites) ** -0.5 if role in ("out", "ffn_out") else 1.0
