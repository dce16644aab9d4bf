"""Mix-LN: Post-LN in the lower layers, Pre-LN in the upper ones."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Fraction
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="mix_ln",
        title="Mix-LN",
        group="placement",
        formula=(
            "layers below post * depth: x <- N(x + f(x)); above: x <- x + f(N(x)); y = N_final(x)"
        ),
        paper=(
            "Li, Yin and Liu, Mix-LN: Unleashing the Power of Deeper Layers by Combining "
            "Pre-LN and "
            "Post-LN, 2024, arXiv 2412.13795"
        ),
        summary=(
            "Gives upper layers the gradients that Pre-LN takes from them, lower ones stability."
        ),
        reduces_to=(
            ("mix_ln(post=0.0)", "pre_ln"),
            ("mix_ln(post=1.0)", "post_ln(final_norm=True)"),
        ),
        undefined=(
            "The paper has decoder-only models; each stack of a pair is split by its own depth."
        ),
    )
)
class MixLN(Wiring):
    """The first layers normalize after the add, the others before the sub-layer.

    x_next = N(x + f(x))      layer < floor(post * depth)
    x_next = x + f(N(x))      other layers
    y      = N_final(x)       after the last site

    x, f(x): (..., dim) the stream and the branch
    post: constant, fraction of Post-LN layers
    N: one norm per site, and N_final

    Li, Yin and Liu 2024, section 3.
    """

    # NOTE[DIFF]: the release also starts embeddings at a deviation of sqrt(2 / 5); that is the
    # model's.
    def __init__(self, plan: Plan, *, post: Fraction = 0.25) -> None:
        super().__init__(plan)
        self.num_post_layers = int(round(post * plan.depth, 6))  # 0.29 * 100 is 28.999...
        self.norms = self.make_site_norms()
        self.final_norm = self.make_norm()

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # Pre-LN in the upper layers.
        (x,) = state
        return (x if self.has_post_norm(site) else self.norm(site)(x)), state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # Post-LN in the lower layers.
        (x,) = state
        total = x + branch
        return (self.norm(site)(total) if self.has_post_norm(site) else total,)

    def has_post_norm(self, site: Site) -> bool:
        return site.layer < self.num_post_layers

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])
