"""Base class of Post-LN and of wirings that only scale its skip."""

from torch import Tensor, nn

from addnorm.core.plan import Site
from addnorm.wirings.base import Branch, State, Wiring


class PostNorm(Wiring):
    """Add, then normalize.

    x_next = N(s * x + f(x))

    x, f(x): (..., dim) the stream and the branch
    s: the scale of the skip, 1 unless a wiring says otherwise
    N: one norm per site, kept as `norms`; no final norm
    """

    norms: nn.ModuleList

    def scale(self, site: Site) -> float | Tensor | None:
        """Return the scale of the skip; None for 1."""
        return None

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        scale = self.scale(site)
        return (self.norm(site)((x if scale is None else scale * x) + branch),)

    def step(self, state: State, site: Site, branch: Branch) -> State:
        # The same as read, branch and write, by one kernel if there is one.
        (x,) = state
        scale = self.scale(site)
        result = self.add_and_norm(
            x, x, branch, norm=self.norms[site.index], scale=1.0 if scale is None else scale
        )
        return super().step(state, site, branch) if result is None else result[1:]

    def has_post_norm(self, site: Site) -> bool:
        return True

    def close(self, state: State) -> Tensor:
        return state[0]
