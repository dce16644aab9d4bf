"""Res-post-norm: normalize the branch, not the stream."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import NonNegative
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="res_post",
        title="Res-post-norm",
        formula="x <- x + N(f(x)); y = N_final(x)",
        paper=(
            "Liu et al., Swin Transformer V2: Scaling Up Capacity and Resolution, 2021, arXiv "
            "2111.09883"
        ),
        summary=(
            "Every branch enters the stream with the same length, whatever its weights; "
            "used by Swin V2 (start=0.0) and OLMo 2, both with query-key norm."
        ),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class ResPost(Wiring):
    """Normalize what the sub-layer returns; it reads the raw stream.

    x_next = x + N(f(x))
    y      = N_final(x)      after the last site

    x, f(x): (..., dim) the stream and the branch
    N: one norm per site, its gain starting at `start` (0 in Swin V2, 1 in OLMo 2), and N_final

    Liu et al. 2021, section 3.2; also the formula of Tay et al., Efficient Transformers: A Survey,
    2020, arXiv 2009.06732, which presents it as Post-LN. Pitfall: never initialize the output
    matrix with zeros, which amplifies the gradient by 1 / sqrt(eps); start the gain at zero.
    """

    multiplier_place = "write"

    # NOTE[DIFF]: dropout acts on the output of the sub-layer, before N; in OLMo 2, after N.
    # NOTE[DIFF]: the gain starts at 1 as in OLMo 2; start=0.0 is Swin V2, whose blocks start as the
    # identity. Swin V2's largest model has an extra norm on the stream every six layers, which is
    # omitted here.
    def __init__(self, plan: Plan, *, start: NonNegative = 1.0) -> None:
        super().__init__(plan)
        self.start = start
        self.norms = self.make_site_norms()
        self.final_norm = self.make_norm()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.start != 1:
            self.set_gains(self.norms, self.start)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        return self.add_branch(state, site, self.finish_branch(site, branch))

    def finish_branch(self, site: Site, branch: Tensor) -> Tensor:
        return self.scale_residual(self.norm(site)(branch))

    def add_branch(self, state: State, site: Site, branch: Tensor) -> State:
        return (state[0] + branch,)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])
