"""Sandwich-LN: a norm before and a norm after the sub-layer."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import NonNegative
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="sandwich",
        title="Sandwich-LN, Peri-LN",
        formula="x <- x + N_out(f(N_in(x))); y = N_final(x)",
        paper=(
            "Ding et al., CogView: Mastering Text-to-Image Generation via Transformers, 2021, "
            "arXiv 2105.13290"
        ),
        summary=(
            "The stream's variance grows by one per sub-layer whatever the weights; Peri-LN, Gemma "
            "2 and 3, GLM-4 and Grok-1 use it."
        ),
    )
)
class Sandwich(Wiring):
    """Pre-LN whose branch is normalized once more.

    x_next = x + N_out(f(N_in(x)))
    y      = N_final(x)      after the last site

    x, f(x): (..., dim) the stream and the branch
    N_in: one norm per site, N_out: another, its gain starting at `start`; and N_final

    Ding et al. 2021, section 2.4; Kim et al., Peri-LN, 2025, arXiv 2502.02732.
    """

    multiplier_place = "write"

    # NOTE[DIFF]: CogView divides by the largest entry before it normalizes, which only concerns
    # numerics, and initializes output matrices smaller, which has no effect before N_out. Both are
    # omitted.
    # NOTE[DIFF]: Peri-LN may also normalize the embedding; here this is a setting of the model.
    def __init__(self, plan: Plan, *, start: NonNegative = 1.0) -> None:
        super().__init__(plan)
        self.start = start
        self.norms = self.make_site_norms()
        self.outer_norms = self.make_site_norms()
        self.final_norm = self.make_norm()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.start != 1:
            self.set_gains(self.outer_norms, self.start)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return self.norm(site)(state[0]), state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        return self.add_branch(state, site, self.finish_branch(site, branch))

    def finish_branch(self, site: Site, branch: Tensor) -> Tensor:
        return self.scale_residual(self.norm(site, "outer_norms")(branch))

    def add_branch(self, state: State, site: Site, branch: Tensor) -> State:
        return (state[0] + branch,)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])
