"""KEEL: Post-LN with a skip as heavy as the stack is deep."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Positive
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="keel",
        title="KEEL",
        formula="x <- N_out(alpha * x + f(N_in(x))), alpha = number of sub-layers",
        paper=(
            "Chen and Wei, Post-LayerNorm Is Back: Stable, ExpressivE, and Deep, 2026, arXiv "
            "2601.19895"
        ),
        summary=(
            "A Highway-like skip lets Post-LN train beyond a thousand layers without a start rule."
        ),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class Keel(Wiring):
    """Post-LN with a scaled skip and a second norm before the sub-layer.

    x_next = N_out(alpha * x + f(N_in(x)))

    x, f(x): (..., dim) the stream and the branch
    alpha: constant, the number of sub-layers in the stack: 2 or 3 per layer
    N_in, N_out: two norms per site; the last N_out is the last norm

    Chen and Wei 2026, from its abstract and two independent accounts; no code was
    released. Digests with a learned or convex gate describe something else.
    """

    # NOTE[DIFF]: whether the authors keep a final norm is not known; after N_out it would do
    # nothing.
    def __init__(self, plan: Plan, *, alpha: Positive | None = None) -> None:
        super().__init__(plan)
        self.alpha = float(len(plan.at_base.sites)) if alpha is None else alpha
        self.norms = self.make_site_norms()
        self.inner_norms = self.make_site_norms()

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return self.norm(site, "inner_norms")(state[0]), state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        return (self.norm(site)(self.alpha * x + branch),)

    def has_post_norm(self, site: Site) -> bool:
        return True

    def close(self, state: State) -> Tensor:
        return state[0]
