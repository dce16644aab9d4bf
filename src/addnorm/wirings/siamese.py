"""SiameseNorm: a Post-LN and a Pre-LN stream side by side, both read, both written."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="siamese",
        title="SiameseNorm",
        formula=(
            "p <- N_post(p), b = f(N_in(p + N_pre(q))), p <- p + b / sqrt(S * layer), q <- q + b; "
            "y = N_final(N_p(p) + N_q(q))"
        ),
        paper=(
            "Li et al., SiameseNorm: Breaking the Barrier to Reconciling Pre/Post-Norm, 2026, "
            "arXiv 2602.08064"
        ),
        summary="Breaks the trade between Pre-LN's stability and Post-LN's depth with two streams.",
        undefined=(
            "The release has two sub-layers a layer, S = 2; other sizes take their own S here."
        ),
    )
)
class Siamese(Wiring):
    """Two streams whose sum is read.

    p      = N_post(p)
    b      = f(N_in(p + N_pre(q)))
    p_next = p + b / sqrt(S * layer)
    q_next = q + b
    y      = N_final(N_p(p) + N_q(q))

    p, q: (..., dim) the Post-LN and the Pre-LN stream, both start at the embedding
    b: (..., dim) the branch
    S, layer: constants, sub-layers per layer and the number of the layer from 1
    N_post, N_pre, N_in: three norms per site
    N_p, N_q, N_final: three norms at the end

    Li et al. 2026, from the released vision model.
    """

    multiplier_place = "none"  # layers are damped by their number already

    num_state_tensors = 2

    # NOTE[DIFF]: the released divisor is sqrt(2 * layer), for two sub-layers per layer; for other
    # sizes sqrt(S * layer) is our generalization.
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.norms = self.make_site_norms()
        self.post_norms = self.make_site_norms()
        self.pre_norms = self.make_site_norms()
        self.end_post_norm = self.make_norm()
        self.end_pre_norm = self.make_norm()
        self.final_norm = self.make_norm()

    def open(self, x: Tensor) -> State:
        return x, x

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        p, q = state
        p = self.norm(site, "post_norms")(p)
        return self.norm(site)(p + self.norm(site, "pre_norms")(q)), (p, q)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # Later layers add less to the Post-LN stream.
        p, q = state
        return p + branch * (self.plan.per_layer * (site.layer + 1)) ** -0.5, q + branch

    def close(self, state: State) -> Tensor:
        p, q = state
        return self.apply_final_norm(
            self.bind(self.end_post_norm)(p) + self.bind(self.end_pre_norm)(q)
        )
