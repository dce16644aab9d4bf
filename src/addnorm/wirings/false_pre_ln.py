"""False Pre-LN: the well-known bug, kept so that it can be shown, compared and recognized."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="false_pre_ln",
        title="False Pre-LN (a bug)",
        group="classic",
        formula="u = N(x); x <- u + f(u)",
        paper=(
            "Somepalli et al., SAINT: Improved Neural Networks for Tabular Data via Row "
            "Attention and Contrastive Pre-Training, 2021, arXiv 2106.01342 (its released code, "
            "not its text)"
        ),
        summary=(
            "The skip starts after the norm, so there is no identity path: it is Post-LN. "
            "It comes from PreNorm(Residual(f)) instead of Residual(PreNorm(f))."
        ),
    )
)
class FalsePreLN(Wiring):
    """Pre-LN whose skip carries the normalized stream by mistake.

    u      = N(x)
    x_next = u + f(u)
    y      = N_final(x)      only with final_norm=True

    x, u, f(u): (..., dim) the stream, what the sub-layer reads, the branch
    N: one norm per site

    With u_k = N(x_k) it reads u_next = N(u + f(u)): exactly Post-LN after a norm on the embedding,
    without its last norm; final_norm=True brings that back (the shifted Post-LN of GLM-130B).
    Also PyTorch's first norm_first (pytorch issue 61165).
    """

    # The same as Post-LN, which it computes.
    schedule = "inverse_sqrt(warmup=0.2)"

    def __init__(self, plan: Plan, *, final_norm: bool = False) -> None:
        super().__init__(plan)
        self.norms = self.make_site_norms()
        self.final_norm = self.make_norm() if final_norm else None

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # The bug: the state becomes the normalized stream, so the skip carries it too.
        u = self.norm(site)(state[0])
        return u, (u,)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (u,) = state
        return (u + branch,)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])
