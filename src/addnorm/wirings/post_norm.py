"""What Post-LN and those that only scale its skip have in common."""

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
        """The scale of the skip; None for 1."""
        return None

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        """The stream as it is."""
        return state[0], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        """Scale the skip, add, normalize."""
        (x,) = state
        scale = self.scale(site)
        return (self.norm(site)((x if scale is None else scale * x) + branch),)

    def step(self, state: State, site: Site, branch: Branch) -> State:
        """The same, by one kernel where there is one."""
        (x,) = state
        scale = self.scale(site)
        made = self.add_and_norm(
            x, x, branch, norm=self.norms[site.index], scale=1.0 if scale is None else scale
        )
        return super().step(state, site, branch) if made is None else made[1:]

    def has_post_norm(self, site: Site) -> bool:
        """Always."""
        return True

    def close(self, state: State) -> Tensor:
        """The stream, which the last site normalized."""
        return state[0]
