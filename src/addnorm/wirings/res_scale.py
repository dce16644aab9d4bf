"""ResScale: Pre-LN with a learned scale of every feature of the skip."""

from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import State, Wiring, empty_parameter, register


@register(
    Card(
        name="res_scale",
        title="ResScale",
        formula="x <- s * x + f(N(x)), s = 1 at start; y = N_final(x)",
        paper="Yu et al., MetaFormer Baselines for Vision, 2022, arXiv 2210.13452",
        summary="LayerScale on the other term: later layers can fade out what earlier ones wrote.",
        reduces_to=(("res_scale", "pre_ln"),),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class ResScale(Wiring):
    """Scale the stream, feature by feature, before a branch is added.

    x_next = s * x + f(N(x))
    y      = N_final(x)      after the last site

    x, f(x): (..., dim) the stream and the branch
    s: (dim) per site, starts at 1
    N: one norm per site, and N_final

    Yu et al. 2022, section 2.2; code: timm, metaformer.py.
    """

    # NOTE[DIFF]: the paper scales the last two of its four stages only; here every site has a
    # scale.
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.norms = self.make_site_norms()
        self.s = empty_parameter(len(plan.sites), plan.dim)
        self.final_norm = self.make_norm()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.s)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return self.norm(site)(state[0]), state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        return (self.s[site.index] * state[0] + branch,)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])

    def no_decay(self) -> set[str]:
        return super().no_decay() | {"s"}
