"""U-shaped skips: the outputs of the lower half are passed to the upper half, last to first."""

from typing import Literal

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Finite
from addnorm.wirings.base import State, Wiring, empty_parameter, register


@register(
    Card(
        name="u_skips",
        title="U-shaped skips",
        group="dense",
        formula="x <- x + f(N(x)); layer depth-1-i first does x <- x + w_i * x_i; y = N_final(x)",
        paper=(
            "Bao et al., All are Worth Words: A ViT Backbone for Diffusion Models, 2022, "
            "arXiv 2209.12152"
        ),
        summary=(
            "Pre-LN with the long skips of a U-net; in U-ViT and in fast GPT-2 training records."
        ),
        reduces_to=(("u_skips(start=0.0)", "pre_ln"),),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class USkips(Wiring):
    """Pre-LN whose upper layers also read the outputs of the lower layers.

    x_next = x + f(N(x))                              inside every layer
    x      = x + w_i * x_i                            mix=add, before layer depth - 1 - i
    x      = W_i [x, x_i] + b_i                       mix=concat, at the same position
    y      = N_final(x)                               after the last site

    x, f(x): (..., dim) the stream and the branch
    x_i: (..., dim) the stream after layer i, for i in the lower half; with odd depth the middle
        layer has no partner
    w: scalar per pair, starts at `start`, 1 unless given
    W: (dim, 2 dim) per pair, starts N(0, 0.02^2) cut at 2 deviations; b at 0
    N: one norm per site, and N_final

    mix=concat: Bao et al. 2022, section 3.2; mix=add: modded-nanogpt, record of November 2024.
    """

    num_state_tensors = None

    # NOTE[DIFF]: U-ViT's released form is mix=concat. Its matrices, initialized at 0.02, almost
    # erase the stream at small widths, so the additive form of modded-nanogpt is the default,
    # without its mixture of the embedding into every layer.
    def __init__(
        self, plan: Plan, *, mix: Literal["add", "concat"] = "add", start: Finite | None = None
    ) -> None:
        super().__init__(plan)
        if mix == "concat" and start is not None:
            raise UserError(
                f"u_skips(mix=concat) has no scalars to start at {start}; leave start out"
            )
        self.start = 1.0 if start is None else start
        self.pairs = plan.depth // 2
        self.norms = self.make_site_norms()
        self.w = empty_parameter(self.pairs) if mix == "add" else None
        concat = range(self.pairs if mix == "concat" else 0)
        self.maps = nn.ModuleList(nn.Linear(2 * plan.dim, plan.dim) for _ in concat)
        self.final_norm = self.make_norm()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.w is not None:
            nn.init.constant_(self.w, self.start)
        for tensor in self.maps.parameters():
            if tensor.ndim == 2:
                nn.init.trunc_normal_(tensor, std=0.02, a=-0.04, b=0.04)
            else:
                nn.init.zeros_(tensor)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # A layer of the upper half first merges the output of its partner in the lower half.
        x, *waiting = state
        partner = self.plan.depth - 1 - site.layer
        if site.first and partner < self.pairs:
            x, waiting = self._merge_skip(x, waiting[-1], partner), waiting[:-1]
        return self.norm(site)(x), (x, *waiting)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # A layer of the lower half stores its output for its partner.
        x, *waiting = state
        x = x + branch
        return (x, *waiting, x) if site.last and site.layer < self.pairs else (x, *waiting)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])

    def _merge_skip(self, x: Tensor, skip: Tensor, pair: int) -> Tensor:
        return (
            x + self.w[pair] * skip
            if self.w is not None
            else self.maps[pair](torch.cat([x, skip], -1))
        )
