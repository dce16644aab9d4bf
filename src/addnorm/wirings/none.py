"""A plain residual connection: no norm anywhere."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Site
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="none",
        title="Plain residual",
        group="classic",
        formula="x <- x + f(x)",
        paper="He et al., Deep Residual Learning for Image Recognition, 2015, arXiv 1512.03385",
        summary="Baseline: Add & Norm without the norm.",
    )
)
class PlainResidual(Wiring):
    """Add the branch, nothing else.

    x_next = x + f(x)

    x, f(x): (..., dim) the stream and the branch

    He et al. 2015, eq. 1. Pitfall: nothing bounds the stream, which grows exponentially with depth;
    200 layers overflow float16 and bfloat16 at initialization.
    """

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        return (x + branch,)

    def close(self, state: State) -> Tensor:
        return state[0]
