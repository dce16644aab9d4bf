"""SkipInit: a scalar at the end of each branch in place of the norm."""

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import State, Wiring, empty_parameter, register

Start = Annotated[float, Field(ge=-100, le=100)]  # no norm undoes what a branch multiplies


@register(
    Card(
        name="skip_init",
        title="SkipInit",
        group="norm-free",
        folds_to="none",
        formula="x <- x + a * f(x), a = 0 at start, one per sub-layer",
        paper=(
            "De and Smith, Batch Normalization Biases Residual Blocks Towards the Identity "
            "Function in Deep Networks, 2020, arXiv 2002.10444"
        ),
        summary="Biases every block to the identity, which is what the norm did for deep stacks.",
        reduces_to=(("skip_init(start=1.0)", "none"),),
    )
)
class SkipInit(Wiring):
    """A learned scalar on every branch.

    x_next = x + a * f(x)

    x, f(x): (..., dim) the stream and the branch
    a: scalar per site, starts at `start`, 0 in the paper, not decayed

    De and Smith 2020, section 4. Stated for convolutional nets; for Transformers it is ReZero with
    a scalar for each sub-layer.
    """

    # As ReZero, for the same reason: it starts as the identity.
    schedule = "cosine(warmup=0)"

    def __init__(self, plan: Plan, *, start: Start = 0.0) -> None:
        super().__init__(plan)
        self.start = start
        self.a = empty_parameter(len(plan.sites))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.a, self.start)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        return (x + self.a[site.index] * branch,)

    def close(self, state: State) -> Tensor:
        return state[0]
