"""Scaled residual branches: a constant factor on what every sub-layer adds."""

from typing import Literal

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Count, InnerCall, Positive
from addnorm.wirings.base import State, Wiring, register
from addnorm.wirings.decorator_base import Decorator

DepthRule = Literal["constant", "sqrt_depth", "depth", "unit"]


@register(
    Card(
        name="scaled",
        title="Scaled branches",
        formula="x <- x + r * f(N(x)), r constant; any wiring inside",
        paper=(
            "Yang et al., Tensor Programs VI: Feature Learning in Infinite-Depth Neural Networks, "
            "2023, arXiv 2310.02244"
        ),
        summary=(
            "Keeps the sum of all branches small, so that rates transfer over depth: Granite, "
            "MiniCPM, depth-muP, CompleteP, u-muP. A decorator."
        ),
        reduces_to=(
            ("scaled(r=1.0)", "pre_ln"),
            ("scaled(inner=sandwich, r=1.0)", "sandwich"),
            ("scaled(inner=hyper, r=1.0)", "hyper"),
        ),
        undefined="The sources have no cross-attention; it is scaled like every other site here.",
    )
)
class Scaled(Decorator):
    """Multiply every branch by a constant before it is added.

    branch <- t * branch                   before the add of the inner wiring, behind norms of the
                                           branch (sandwich, res_post)
    x      <- (x + t * branch) / sqrt(1 + t^2)     rule=unit

    x, branch: (..., dim) the stream and what is added to it
    r: constant, 0.22 as in Granite 3
    t: r for rule=constant, r * (base / depth)^(1 / 2) for sqrt_depth, r * base / depth for depth
    unit: t_i = a_i / sqrt(S / 2 + n_attn a_attn^2 + n_ffn a_ffn^2) at site i of S; n_* counts the
        sites before i, a_ffn = r sqrt(2 / (1 + q^2)), a_attn = q a_ffn, q = ratio

    Granite: r = residual_multiplier. MiniCPM: scaled(r=1.4, rule=sqrt_depth). Depth-muP and
    CompleteP: r = 1, rule=sqrt_depth and rule=depth, `base` the depth at which rates were tuned;
    Dey et al. 2025, arXiv 2505.01618. u-muP: r = 1, rule=unit; Blake et al. 2024, arXiv 2407.17465.
    """

    # NOTE[DIFF]: u-muP counts the attention sites before i as (i + 1) // 2, for layers of two
    # sub-layers; here they are counted by their kind, which also holds for three.
    def __init__(
        self,
        plan: Plan,
        *,
        inner: InnerCall = "pre_ln",
        r: Positive = 0.22,
        rule: DepthRule = "constant",
        base: Count = 1,
        ratio: Positive = 1.0,
    ) -> None:
        super().__init__(plan, inner)
        self.r, self.rule, self.base, self.ratio = r, rule, base, ratio
        self._check_inner(inner)
        self.factors = tuple(self._factor(site) for site in plan.sites)

    def finish_branch(self, site: Site, branch: Tensor) -> Tensor:
        factor = self.factors[site.index]
        branch = self.inner.finish_branch(site, branch)
        return branch if factor == 1 else factor * branch

    def add_branch(self, state: State, site: Site, branch: Tensor) -> State:
        state = self.inner.add_branch(state, site, branch)
        if self.rule != "unit":
            return state
        return (state[0] * self.stream_factor(site),)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        return self.add_branch(state, site, self.finish_branch(site, branch))

    def stream_factor(self, site: Site) -> float:
        """Return the factor on the stream after the add of a site; 1 unless rule=unit."""
        return float((1 + self.factors[site.index] ** 2) ** -0.5) if self.rule == "unit" else 1.0

    def _factor(self, site: Site) -> float:
        depth = self.plan.depth / self.base
        if self.rule == "unit":
            return self._unit_factor(site)
        return self.r * {"constant": 1.0, "sqrt_depth": depth**-0.5, "depth": 1 / depth}[self.rule]

    def _unit_factor(self, site: Site) -> float:
        ffn = self.r * (2 / (1 + self.ratio**2)) ** 0.5
        sizes = [self.ratio * ffn if self._is_attention(each) else ffn for each in self.plan.sites]
        before = sum(size**2 for size in sizes[: site.index])
        return float(sizes[site.index] / (len(sizes) / 2 + before) ** 0.5)

    def _is_attention(self, site: Site) -> bool:
        return self.plan.sublayer_kind(site) != "ffn"

    def _check_inner(self, call: str) -> None:
        innermost = self.inner
        while isinstance(innermost, Decorator):
            innermost = innermost.inner
        if innermost.ignores_branch_size:
            raise UserError(
                f"scaled: {call} normalizes every branch, so that a factor on it has no effect; "
                "choose another inner wiring"
            )
        is_hidden = not isinstance(self.inner, Scaled) and isinstance(self.inner, Decorator)
        if is_hidden and type(innermost).finish_branch is not Wiring.finish_branch:
            raise UserError(
                f"scaled: expected a wiring directly inside, got {call}, whose branches are "
                "normalized; put scaled inside, as in drop_path(scaled(sandwich))"
            )
        has_one_stream = self.num_state_tensors == 1 and type(innermost).trunk is Wiring.trunk
        if self.rule == "unit" and (not has_one_stream or self._has_post_norms()):
            raise UserError(
                f"scaled(rule=unit) divides one stream after each add, which {call} lacks or "
                "normalizes; choose an inner wiring such as pre_ln"
            )

    def _has_post_norms(self) -> bool:
        return any(self.inner.has_post_norm(site) for site in self.plan.sites)
