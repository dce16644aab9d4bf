"""Sub-LN: Pre-LN with a second norm before each output matrix."""

import math

from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Plugs, Site
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="sub_ln",
        title="Sub-LN (Magneto)",
        formula="x <- x + W_out N_inner(g(N(x))), where f(h) = W_out g(h); y = N_final(x)",
        paper="Wang et al., Foundation Transformers, 2022, arXiv 2210.06423",
        summary=("One wiring for language, vision and speech; BitNet, BEiT-3 and Kosmos use it."),
        undefined=(
            "Cross-attention has no inner norm and no start factor in the released code, and none "
            "here."
        ),
    )
)
class SubLN(Wiring):
    """Pre-LN with a norm inside the sub-layer, before its last matrix.

    x_next = x + W_out N_inner(g(N(x)))
    y      = N_final(x)      after the last site

    g: the sub-layer without its last matrix W_out: the joined heads, or the activated hidden units
    N: one norm per site, and N_final
    N_inner: one norm inside each self-attention (heads * head_dim) and feed-forward (its width)
    value, out, ffn_in, ffn_out: start times sqrt(ln K) for a stack of K sub-layers; in the encoder
        of a pair times sqrt(ln(3 M) * ln(2 N) / 3)

    Wang et al. 2022, section 2.2 and figure 2.
    """

    # NOTE[DIFF]: K is taken as at least 2: a stack of a single sub-layer would start at sqrt(ln 1)
    # = 0.
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.norms = self.make_site_norms()
        self.inner_norms = nn.ModuleDict(
            {
                str(site.index): self.make_norm(shape.inner)
                for site, shape in self.pluggable_sites(exclude=("cross",))
            }
        )
        self.final_norm = self.make_norm()

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return self.norm(site)(state[0]), state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        return (x + branch,)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])

    def plugs(self, site: Site) -> Plugs:
        if str(site.index) not in self.inner_norms:
            return Plugs()
        return Plugs(inner=self.bind(self.inner_norms[str(site.index)]))

    def gain(self, role: str, site: Site | None = None) -> float:
        # The initialization of the paper; cross-attention is excluded.
        if role not in ("value", "out", "ffn_in", "ffn_out") or (
            site is not None and self.plan.sublayer_kind(site) == "cross"
        ):
            return 1.0
        base = self.plan.at_base
        own = math.log(max(len(base.sites), 2))
        if self.plan.role == "encoder":
            return math.sqrt(math.log(3 * (base.other_depth or 1)) * own / 3)
        return math.sqrt(own)
