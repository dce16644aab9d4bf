"""T-Fixup: no norm and no warm-up, only a rule for the start weights."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Site
from addnorm.wirings.base import State, Wiring, register


@register(
    Card(
        name="t_fixup",
        title="T-Fixup",
        formula="x <- x + f(x), start weights scaled by depth ** (-1 / 4)",
        paper=(
            "Huang, Perez, Ba and Volkovs, Improving Transformer Optimization Through Better "
            "Initialization, 2020, ICML"
        ),
        summary=(
            "Shrinks values, outputs, feed-forwards and embeddings so that one Adam step is small."
        ),
        reduces_to=(("t_fixup", "none"),),
        undefined=(
            "The paper has encoder-decoders only; a lone encoder or decoder takes the rule of its "
            "kind."
        ),
    )
)
class TFixup(Wiring):
    """A plain residual connection whose weights start small.

    x_next = x + f(x)

    x, f(x): (..., dim) the stream and the branch
    value, out, ffn_in, ffn_out: start times 0.67 * N ** (-1 / 4) in an encoder of N layers, times
        (9 M) ** (-1 / 4) in a decoder of M layers; cross-attention included
    query, key: start unscaled
    embed: starts times (9 N) ** (-1 / 4) or (9 M) ** (-1 / 4)

    Huang et al. 2020, section 3.2.
    """

    # No warm-up by design; the released recipe has a pace of 4000.
    schedule = "decay_sqrt(pace=0.1)"

    # NOTE[DIFF]: the released code leaves query and key at Xavier gain 1 / sqrt(2), fairseq's
    # default for a fused matrix; here they start at plain Xavier as in the paper.
    # NOTE[DIFF]: the paper writes one N; the released code scales encoder embeddings with N and
    # decoder embeddings with M, which is done here.
    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        return (x + branch,)

    def close(self, state: State) -> Tensor:
        return state[0]

    def gain(self, role: str, site: Site | None = None) -> float:
        depth = self.plan.at_base.depth
        if role == "embed":
            return (9 * depth) ** -0.25
        if role in ("value", "out", "ffn_in", "ffn_out"):
            return (
                0.67 * depth**-0.25
                if self.plan.role.startswith("encoder")
                else (9 * depth) ** -0.25
            )
        return 1.0
