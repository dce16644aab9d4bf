"""LayerNorm Scaling: Pre-LN whose norms are scaled down with depth."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="ln_scaling",
        title="LayerNorm Scaling",
        formula="x <- x + f(N(x) / sqrt(layer)), layer from 1; y = N_final(x)",
        paper="Sun et al., The Curse of Depth in Large Language Models, 2025, arXiv 2502.05795",
        summary="Limits the growth of Pre-LN's variance, so that deep layers stay effective.",
        undefined="The paper has decoder-only models; each stack of a pair counts its own layers.",
    )
)
class LNScaling(Wiring):
    """Pre-LN with a constant factor on the output of each norm.

    x_next = x + f(N(x) / sqrt(layer))
    y      = N_final(x)      after the last site, not scaled

    x, f(x): (..., dim) the stream and the branch
    layer: constant, number of the layer from 1, the same for all its sub-layers
    N: one norm per site, and N_final

    Sun et al. 2025, section 4. Pitfall: it cancels against output weights that shrink with depth
    (pre_ln(init=gpt2)), so weights here start as if there were one layer.
    """

    multiplier_place = "none"  # layers are damped by their number already

    # NOTE[DIFF]: the release initializes all weights with N(0, 0.02^2) at any width; here Xavier,
    # which depends on the width. init_weights(scheme="gpt2") follows the release.
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.norms = self.make_site_norms()
        self.final_norm = self.make_norm()

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return self.norm(site)(state[0]) * (site.layer + 1) ** -0.5, state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        return (x + branch,)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])
