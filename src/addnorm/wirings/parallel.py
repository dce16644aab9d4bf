"""Parallel block: attention and feed-forward of a layer read the same stream."""

from typing import Literal

from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="parallel",
        title="Parallel block",
        group="classic",
        formula="u = N(x); x <- x + Attn(u) + FFN(u); y = N_final(x)",
        paper=(
            "Chowdhery et al., PaLM: Scaling Language Modeling with Pathways, 2022, arXiv "
            "2204.02311"
        ),
        summary=(
            "Pre-LN whose sub-layers run in parallel; GPT-J, PaLM, Falcon-7B and Phi-2 share one "
            "norm per layer."
        ),
        undefined=(
            "The papers have no cross-attention; its branch is one more term of the sum here."
        ),
    )
)
class Parallel(Wiring):
    """Pre-LN whose sub-layers of a layer all read the layer's input.

    x_next = x + sum of f(N(bottom)) over the sub-layers of the layer
    y      = N_final(x)      after the last layer

    x, f(x): (..., dim) the stream and the branches
    bottom: (..., dim) the stream at the input of the layer
    N: one norm per layer (norms=shared: GPT-J, PaLM), or per site (norms=own: GPT-NeoX), and
        N_final

    Chowdhery et al. 2022, section 2; first in GPT-J, Wang and Komatsuzaki 2021.
    """

    num_state_tensors = 2

    def __init__(self, plan: Plan, *, norms: Literal["shared", "own"] = "shared") -> None:
        super().__init__(plan)
        self.shared = norms == "shared"
        count = plan.depth if self.shared else len(plan.sites)
        self.norms = nn.ModuleList(self.make_norm() for _ in range(count))
        self.final_norm = self.make_norm()

    def open(self, x: Tensor) -> State:
        return x, x

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # All sub-layers of a layer read the layer's input.
        x, bottom = state
        if not self.shared:
            bottom = x if site.first else bottom
            return self.norm(site)(bottom), (x, bottom)
        if site.first:
            bottom = self.bind(self.norms[site.layer])(x)
        return bottom, (x, bottom)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # The stream changes, but not the layer's input.
        x, bottom = state
        return x + branch, bottom

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])
