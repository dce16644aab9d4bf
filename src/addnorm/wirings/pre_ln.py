"""Pre-LN: normalize the input of each sub-layer, not the stream."""

from typing import Literal

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.norms.base import make_norm
from addnorm.wirings.base import Branch, State, Wiring, register


@register(
    Card(
        name="pre_ln",
        title="Pre-LN",
        formula="x <- x + f(N(x)); y = N_final(x)",
        paper=(
            "Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, arXiv "
            "2002.04745"
        ),
        summary=(
            "An identity path from the first layer to the last: trains deep and without warm-up;"
            " upper layers add little."
        ),
    )
)
class PreLN(Wiring):
    """Normalize on the way into the sub-layer; the skip carries the raw stream.

    x_next = x + f(N(x))
    y      = N_final(x)      after the last site

    x, f(x): (..., dim) the stream and the branch
    N: one norm per site, and N_final; first_norm=False leaves out the very first (FT-Transformer)
    out, ffn_out: with init=gpt2 all weights start at N(0, 0.02^2), these two divided by sqrt(sites)

    Xiong et al. 2020, figure 1b; init: Radford et al., Language Models are Unsupervised Multitask
    Learners, 2019. In cross-attention only the queries are normalized here: keys and values come
    normalized from the encoder.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        init: Literal["xavier", "gpt2"] = "xavier",
        first_norm: bool = True,
    ) -> None:
        super().__init__(plan)
        self.init = init
        self.scheme = "gpt2" if init == "gpt2" else Wiring.scheme
        self.norms = self.make_site_norms()
        if not first_norm:
            self.norms[0] = make_norm("none", plan.dim)
        self.final_norm = self.make_norm()

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # A fused step may have normalized the stream already.
        x, *ready = state
        return ready[0] if ready else self.norm(site)(x), (x,)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        return (x + branch,)

    def step(self, state: State, site: Site, branch: Branch) -> State:
        # A fused kernel adds and applies the norm of the next site, whose read then skips it.
        h, (x,) = self.read(state, site)
        after = site.index + 1
        norm = self.norms[after] if after < len(self.norms) else self.final_norm
        fused = self.add_and_norm(x, h, branch, norm=norm)
        return self.write((x,), site, branch(h)) if fused is None else fused

    def close(self, state: State) -> Tensor:
        x, *ready = state
        return ready[0] if ready else self.apply_final_norm(x)

    def gain(self, role: str, site: Site | None = None) -> float:
        # Output matrices shrink with the number of additions, so the stream's variance stays.
        shrinks = self.init == "gpt2" and role in ("out", "ffn_out")
        return len(self.plan.at_base.sites) ** -0.5 if shrinks else 1.0
