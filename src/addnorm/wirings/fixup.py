"""Fixup: no norm; zeros, scaled-down weights, and scalars where a norm would shift and scale."""

from functools import partial

from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Plugs, Site
from addnorm.wirings.base import State, Wiring, empty_parameter, register


@register(
    Card(
        name="fixup",
        title="Fixup",
        formula="x <- x + scale * f(x - shift), last matrix of f zero at start",
        paper=(
            "Zhang, Dauphin and Ma, Fixup Initialization: Residual Learning Without "
            "Normalization, 2019, arXiv 1901.09321"
        ),
        summary=(
            "Trains without norms: branches start at zero, their other weights shrink with depth."
        ),
    )
)
class Fixup(Wiring):
    """A scalar shift before each linear map, a scalar scale after each branch.

    x_next = x + scale * f(x - shift)
    y      = (x - end_shift) * end_scale      encoders
    y      = x - end_shift                    decoders

    x, f(x): (..., dim) the stream and the branch
    shift: scalar per site, starts at 0; a feed-forward has two more, before and after its
        activation
    scale: scalar per site, starts at 1
    end_shift, end_scale: scalars, start at 0 and 1
    out, ffn_out: start at 0
    query, key, value: start times branches ** (-1 / 6), a branch of four matrices
    ffn_in: starts times branches ** (-1 / 2), a branch of two
    branches: residual branches of the whole model, 2 N + 3 M for N encoder and M decoder layers

    Zhang, Dauphin and Ma 2019, section 3; Transformer form of the released code. Its linear maps
    have no bias vectors: build the sub-layers with bias=False to follow it.
    """

    # The released recipe for Transformers has a warm-up nevertheless, 4000 steps in 226000
    # (fairseq/run.sh).
    schedule = "inverse_sqrt(warmup=0.05)"

    # NOTE[DIFF]: the released code builds cross-attention without the count of branches, so that
    # its factor is 12 ** (-1 / 6) at any depth; here it has the count of the model, like all
    # other branches.
    # NOTE[DIFF]: the released code also starts an untied output matrix at zero; that is the
    # model's.
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.shift = empty_parameter(len(plan.sites))
        self.scale = empty_parameter(len(plan.sites))
        inside = [str(site.index) for site, _ in self.pluggable_sites(exclude=("self", "cross"))]
        self.hidden_shift = nn.ParameterDict({key: empty_parameter() for key in inside})
        self.inner_shift = nn.ParameterDict({key: empty_parameter() for key in inside})
        self.end_shift = empty_parameter()
        self.end_scale = empty_parameter() if plan.role.startswith("encoder") else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        inside = (*self.hidden_shift.values(), *self.inner_shift.values())
        for shift in (self.shift, self.end_shift, *inside):
            nn.init.zeros_(shift)
        nn.init.ones_(self.scale)
        if self.end_scale is not None:
            nn.init.ones_(self.end_scale)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return state[0] - self.shift[site.index], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        return (x + self.scale[site.index] * branch,)

    def close(self, state: State) -> Tensor:
        y = state[0] - self.end_shift
        return y if self.end_scale is None else y * self.end_scale

    def plugs(self, site: Site) -> Plugs:
        key = str(site.index)
        if key not in self.hidden_shift:
            return Plugs()
        return Plugs(
            hidden=partial(_subtract_shift, self.hidden_shift[key]),
            inner=partial(_subtract_shift, self.inner_shift[key]),
        )

    def gain(self, role: str, site: Site | None = None) -> float:
        # Zero for the last matrix of a branch; the others shrink with depth to keep updates small.
        if role in ("out", "ffn_out"):
            return 0.0
        powers = {"query": -1 / 6, "key": -1 / 6, "value": -1 / 6, "ffn_in": -1 / 2}
        return self.num_branches ** powers[role] if role in powers else 1.0

    @property
    def num_branches(self) -> int:
        """Residual branches of this stack and its partner."""
        partner, base = {"encoder": 3, "decoder": 2}.get(self.plan.role, 0), self.plan.at_base
        return len(base.sites) + partner * (base.other_depth or 0)


def _subtract_shift(shift: Tensor, x: Tensor) -> Tensor:
    return x - shift
