"""Bottom-to-top connection: Post-LN with one more skip around the whole layer."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="b2t",
        title="B2T connection",
        formula="x <- N(x + f(x)); at a layer's last sub-layer x <- N(x + f(x) + bottom)",
        paper=(
            "Takase et al., On Layer Normalizations and Residual Connections in Transformers, "
            "2022, arXiv 2206.00330"
        ),
        summary=(
            "Keeps Post-LN's strong upper gradients and gives the lower layers a path past all "
            "norms but one."
        ),
    )
)
class B2T(Wiring):
    """Post-LN whose last norm of each layer also sees the layer's input.

    x_next = N(x + f(x))              inside a layer
    x_next = N(x + f(x) + bottom)     at its last sub-layer

    x, f(x): (..., dim) the stream and the branch
    bottom: (..., dim) the stream at the input of the layer
    N: one norm per site, no final norm
    query, key, value, out, ffn_in, ffn_out: start times 1 / sqrt(depth), unless rescale=False

    Takase et al. 2022, section 4.
    """

    # The released recipe: 4000 steps of warm-up.
    schedule = "inverse_sqrt(warmup=0.1)"
    num_state_tensors = 2

    # NOTE[DIFF]: all initial weights are divided by sqrt(depth) as in the released code; whether
    # the paper does so was not verified. rescale=False turns it off.
    def __init__(self, plan: Plan, *, rescale: bool = True) -> None:
        super().__init__(plan)
        self.rescale = rescale
        self.norms = self.make_site_norms()

    def open(self, x: Tensor) -> State:
        return x, x

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # The first sub-layer of a layer stores the stream as the bottom.
        x, bottom = state
        return x, (x, x if site.first else bottom)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # The last sub-layer of a layer also adds the bottom.
        x, bottom = state
        total = x + branch
        if site.last:
            total = total + bottom  # the only path that skips every norm of the layer but this one
        return self.norm(site)(total), bottom

    def close(self, state: State) -> Tensor:
        return state[0]

    def gain(self, role: str, site: Site | None = None) -> float:
        # Rescaling of the released recipe.
        return self.plan.at_base.depth**-0.5 if self.rescale and role != "embed" else 1.0
