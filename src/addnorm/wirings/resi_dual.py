"""ResiDual: a Post-LN stream that is read, and a Pre-LN stream that collects."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import NonNegative, Positive
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="resi_dual",
        title="ResiDual",
        group="multi-stream",
        formula="x <- N(x + f(x)), r <- r + s * f(x); y = a * x + N_final(r)",
        paper=(
            "Xie et al., ResiDual: Transformer with Dual Residual Connections, 2023, arXiv "
            "2304.14802"
        ),
        summary="Post-LN's representations and Pre-LN's gradients, for one more norm per stack.",
        reduces_to=(("resi_dual(scale=0.5)", "resi_dual"),),
    )
)
class ResiDual(Wiring):
    """Two streams fed by the same branches.

    x_next = N(x + f(x))
    r_next = r + scale * f(x)
    y      = share * x + N_final(r)

    x: (..., dim) the stream that is read, starts at the embedding
    r: (..., dim) the stream that collects, starts at scale * embedding
    scale: constant; below 1 it protects float16, N_final removes it
    share: constant, weight of x in the output
    N: one norm per site, and N_final

    Xie et al. 2023, section 3. In a decoder of three sub-layers the rule is the same.
    """

    # The released recipe for WMT: 4000 steps of warm-up in 50000 (hydra_config/wmt.yaml).
    schedule = "inverse_sqrt(warmup=0.1)"
    num_state_tensors = 2

    # NOTE[DIFF]: the released N_final has eps 1e-7; here that of the stack's norm.
    def __init__(self, plan: Plan, *, scale: Positive = 1.0, share: NonNegative = 1.0) -> None:
        super().__init__(plan)
        self.scale, self.share = scale, share
        self.norms = self.make_site_norms()
        self.final_norm = self.make_norm()

    def open(self, x: Tensor) -> State:
        return x, self.scale * x

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # Add to both streams, and normalize the Post-LN one.
        x, r = state
        return self.norm(site)(x + branch), r + self.scale * branch

    def close(self, state: State) -> Tensor:
        x, r = state
        return self.share * x + self.apply_final_norm(r)
