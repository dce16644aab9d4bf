"""ReZero: no norm; every branch starts at zero."""

from typing import Literal

from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import State, Wiring, empty_parameter, register


@register(
    Card(
        name="rezero",
        title="ReZero",
        group="norm-free",
        folds_to="none",
        formula="x <- x + alpha * f(x), alpha = 0 at start",
        paper=(
            "Bachlechner et al., ReZero is All You Need: Fast Convergence at Large Depth, 2020, "
            "arXiv 2003.04887"
        ),
        summary="The stack starts as the identity and grows into a deep one; no norm, no warm-up.",
        reduces_to=(("rezero(per=site)", "skip_init"),),
    )
)
class ReZero(Wiring):
    """A learned scalar, zero at start, on every branch.

    x_next = x + alpha * f(x)

    x, f(x): (..., dim) the stream and the branch
    alpha: scalar, starts at 0, not decayed; one per layer, or per site with per=site

    Bachlechner et al. 2020, eq. 1. At the first step only alpha has a gradient. Pitfall: the
    relative step of Adafactor is tiny for a parameter that starts at 0.
    """

    # No warm-up. The decay is the usual one, as the paper specifies none.
    schedule = "cosine(warmup=0)"

    # NOTE[DIFF]: the released code shares one alpha among the sub-layers of a layer; the paper's
    # formula can be read as one each: per=site.
    # NOTE[DIFF]: post_norm=True is N(x + alpha * f(x)), a variant of Transformer-Clinic.
    def __init__(
        self, plan: Plan, *, per: Literal["layer", "site"] = "layer", post_norm: bool = False
    ) -> None:
        super().__init__(plan)
        self.per = per
        self.alpha = empty_parameter(plan.depth if per == "layer" else len(plan.sites))
        self.norms = self.make_site_norms() if post_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.alpha)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        alpha = self.alpha[site.layer if self.per == "layer" else site.index]
        total = x + alpha * branch
        return (total if self.norms is None else self.norm(site)(total),)

    def close(self, state: State) -> Tensor:
        return state[0]
