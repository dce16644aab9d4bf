"""The stream of nanochat and modded-nanogpt: every layer mixes in the embedding again."""

from typing import Literal

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import State, Wiring, empty_parameter, register

STARTS = {
    "nanochat": (1.15, 1.05, 0.20, 0.05, 0.2),
    "modded": (1.05, 1.05, 0.0, 0.0, 0.5),
    "plain": (1.0, 1.0, 0.0, 0.0, 0.0),
}
"""Start values: r of the first and the last layer, i of both, and b."""


@register(
    Card(
        name="nanochat",
        title="Embedding mixing and back-out (nanochat, modded-nanogpt)",
        formula="x <- r * x + i * x_0 before a layer, Pre-LN inside; y = N_final(x - b * x_mid)",
        paper=(
            "Karpathy, nanochat, 2025, and Jordan et al., modded-nanogpt, 2024: speedruns without "
            "a paper"
        ),
        summary=(
            "Three learned numbers: the stream decays, the embedding returns in every layer, and "
            "the middle of the network is taken out at the end."
        ),
        reduces_to=(("nanochat(start=plain)", "pre_ln"),),
        undefined="The sources have no cross-attention; it is wired like every other site here.",
    )
)
class Nanochat(Wiring):
    """Pre-LN between mixtures of the stream and the embedding.

    x      = r * x + i * x_0          before each layer; x_0 the input of the stack
    x_next = x + f(N(x))              inside
    y      = N_final(x - b * x_mid)   x_mid the stream behind layer depth // 2, counted from 0

    x, f(x): (..., dim) the stream and the branch
    r: scalar per layer, starts at 1.15 in the first, 1.05 in the last, linear between
    i: scalar per layer, starts at 0.20 in the first, 0.05 in the last
    b: scalar, starts at 0.2
    N: one norm per site, and N_final

    nanochat of July 2026; its earlier versions have r = 1 and i = 0 (start=plain). start=modded:
    modded-nanogpt's medium track, r = 1.05, i = 0, b = 0.5.
    """

    # NOTE[DIFF]: nanochat normalizes the embedding first, and has norms without gain: settings of
    # the model, embed_norm="rms(affine=False)" and norm="rms(affine=False)".
    # NOTE[DIFF]: nanochat's `smear`, which mixes the embeddings of neighboring tokens, belongs to
    # the embedding, and its skips of the U shape are `u_skips`; both are omitted.
    num_state_tensors = None

    def __init__(
        self, plan: Plan, *, start: Literal["nanochat", "modded", "plain"] = "nanochat"
    ) -> None:
        super().__init__(plan)
        self.start, self.middle = start, plan.depth // 2
        self.norms = self.make_site_norms()
        self.r, self.i = empty_parameter(plan.depth), empty_parameter(plan.depth)
        self.b = empty_parameter()
        self.final_norm = self.make_norm()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        first_r, last_r, first_i, last_i, back = STARTS[self.start]
        depth = self.plan.depth
        with torch.no_grad():
            self.r.copy_(torch.linspace(first_r, last_r, depth))
            self.i.copy_(torch.linspace(first_i, last_i, depth))
        nn.init.constant_(self.b, back)

    def open(self, x: Tensor) -> State:
        return x, x

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        x, first, *middle = state
        if site.first:
            x = self.r[site.layer] * x + self.i[site.layer] * first
        return self.norm(site)(x), (x, first, *middle)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        x, *others = state
        x = x + branch
        is_middle = site.last and site.layer == self.middle
        return (x, *others, x) if is_middle else (x, *others)

    def close(self, state: State) -> Tensor:
        x, _, middle = state
        return self.apply_final_norm(x - self.b * middle)
