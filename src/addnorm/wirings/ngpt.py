"""nGPT: everything on the unit sphere, weights included."""

from collections.abc import Iterable
from functools import partial
from typing import Literal

from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Plugs, Site
from addnorm.core.registry import Positive
from addnorm.norms.statistics import l2_normalize
from addnorm.wirings.base import State, Wiring, empty_parameter, register

INPUT_ROLES = ("query", "key", "value", "ffn_in", "embed")
OUTPUT_ROLES = ("out", "ffn_out")


@register(
    Card(
        name="ngpt",
        title="nGPT",
        formula="x <- n(n(x) + a * (n(f(x)) - n(x))), n(v) = v / |v|; weights are unit vectors too",
        paper=(
            "Loshchilov et al., nGPT: Normalized Transformer with Representation Learning on the "
            "Hypersphere, 2024, arXiv 2410.01131"
        ),
        summary=(
            "A branch only rotates the stream on its sphere; no norm layer, no decay, no warm-up."
        ),
        needs=("after_step",),
        undefined="The paper has no cross-attention; it has its own `a` and scale here.",
    )
)
class NGPT(Wiring):
    """A step on the sphere towards the normalized branch.

    x_next = n(n(x) + |a| * (n(f(x)) - n(x))),     n(v) = v / |v|
    q, k   = n(q) * s_qk, n(k) * s_qk               inside attention, logits times sqrt(head_dim)
    hidden = hidden * s_uv * sqrt(dim)              inside feed-forwards, before the activation

    x, f(x): (..., dim) the stream and the branch
    a: (dim) per site, starts at `alpha`; stored times 1 / (alpha sqrt(dim)), which sets Adam's step
    s_qk: (key_heads, head_dim) per attention, starts at 1; stored times 1 / sqrt(dim)
    s_uv: (hidden) per feed-forward, starts at 1

    Loshchilov et al. 2024, section 2. After every step of the optimizer `Stack.after_step` turns
    the rows of query, key, value and ffn_in and the columns of out and ffn_out into unit vectors
    again. The norm chosen for the stack is not used. Build the sub-layers with bias=False to follow
    the paper.
    """

    multiplier_place = "none"  # the stream moves on a sphere

    # No warm-up; the decay is the usual one.
    schedule = "cosine(warmup=0)"
    scheme = "unit"
    ignores_branch_size = True

    # NOTE[DIFF]: x is normalized before the step as in the released code; OLMo-core uses the raw x
    # (skip=raw).
    # NOTE[DIFF]: sqrt(dim) scales both halves of a gated feed-forward as in the released code, and
    # only the gate in the paper (root=gate); n(f(x)) cancels the factor of the other half.
    # NOTE[DIFF]: n(0) is NaN in the released code; here a zero vector stays zero.
    # NOTE[DIFF]: the first site reads the embedding with its own length. In the released model that
    # is 1, because the table is normalized after every step (here by Model.after_step).
    def __init__(
        self,
        plan: Plan,
        *,
        alpha: Positive = 0.05,
        skip: Literal["unit", "raw"] = "unit",
        root: Literal["both", "gate"] = "both",
    ) -> None:
        super().__init__(plan)
        self.alpha, self.skip, self.root = alpha, skip, root
        inside = dict(self.pluggable_sites())
        self.a = empty_parameter(len(plan.sites), plan.dim)
        self.s_qk = nn.ParameterDict(
            {
                str(site.index): empty_parameter(shape.key_heads, shape.head_dim)
                for site, shape in inside.items()
                if shape.heads
            }
        )
        self.s_uv = nn.ParameterDict(
            {
                str(site.index): empty_parameter(shape.hidden)
                for site, shape in inside.items()
                if not shape.heads
            }
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Stored values that represent alpha, 1 and 1.
        for stored in (self.a, *self.s_qk.values()):
            nn.init.constant_(stored, self.plan.dim**-0.5)
        for stored in self.s_uv.values():
            nn.init.ones_(stored)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # Move the stream towards the branch on the unit sphere.
        x = l2_normalize(state[0]) if self.skip == "unit" else state[0]
        a = (self.a[site.index] * (self.alpha * self.plan.dim**0.5)).abs()
        return (l2_normalize(x + a * (l2_normalize(branch) - x)),)

    def close(self, state: State) -> Tensor:
        return state[0]

    def plugs(self, site: Site) -> Plugs:
        key, root = str(site.index), self.plan.dim**0.5
        shape = self.plan.shape(site)
        if key in self.s_qk and shape is not None:
            match = partial(_normalize_query_key, self.s_qk[key] * root)
            return Plugs(match=match, logit_scale=shape.head_dim**0.5)
        if key in self.s_uv and shape is not None:
            roots = self.s_uv[key].new_full((shape.hidden,), root)
            if self.root == "gate" and shape.hidden > shape.inner:
                roots[: shape.inner] = 1  # the half that is not activated comes first
            return Plugs(hidden=partial(_multiply, self.s_uv[key] * roots))
        return Plugs()

    def after_step(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        # Normalize every vector of a weight matrix that meets the stream.
        for role, weight in weights:
            if role in INPUT_ROLES + OUTPUT_ROLES:
                weight.copy_(l2_normalize(weight, -1 if role in INPUT_ROLES else 0))

    def no_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters()}


def _normalize_query_key(scale: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Normalize and scale (B, H, L, K); a group of queries shares the scale of its key head."""
    scale = scale.unsqueeze(-2)
    groups = query.shape[-3] // key.shape[-3]
    return l2_normalize(query) * scale.repeat_interleave(groups, 0), l2_normalize(key) * scale


def _multiply(scale: Tensor, x: Tensor) -> Tensor:
    return x * scale
