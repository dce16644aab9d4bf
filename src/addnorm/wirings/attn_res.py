"""Attention residuals: each sub-layer attends over what was added before it."""

from typing import Literal

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Count
from addnorm.norms.base import statistics_dtype
from addnorm.wirings.base import State, Wiring, autocast_disabled, empty_parameter, register


@register(
    Card(
        name="attn_res",
        title="Attention residuals",
        formula=(
            "h = sum_i softmax_i(w . RMS(v_i)) v_i over sources v; branch = f(N(h)); y = "
            "N_final(h_end)"
        ),
        paper="Kimi Team, Attention Residuals, 2026, arXiv 2603.15031",
        summary=(
            "Replaces the fixed sum over depth by a softmax; blocks keep the number of sources "
            "small."
        ),
        reduces_to=(("attn_res", "pre_ln"), ("attn_res(form=full)", "pre_ln")),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class AttnRes(Wiring):
    """A softmax over depth in place of the running sum.

    h = sum_i softmax_i(w . (g * RMS(v_i))) * v_i
    branch = f(N(h))
    y = N_final(h_end), mixed once more with its own w and g

    v: (..., dim) the sources; with form=full the embedding and every branch so far, with form=block
        the embedding, the sums of finished blocks, and the running sum of the current block
    w: (dim) per site but the first, and one at the end, starts at 0: all sources have equal weight
    g: (dim) with each w, starts at 1
    block: constant, layers in a block; the default gives about eight blocks
    N: one norm per site, and N_final

    Kimi Team 2026, section 3; control flow of the released model. Keys are normalized, values are
    raw, nothing is divided by sqrt(dim).
    """

    multiplier_place = "none"  # layers are averaged by attention

    num_state_tensors = None

    # NOTE[DIFF]: the eps inside RMS is 1e-6, independent of the stack's norm.
    def __init__(
        self,
        plan: Plan,
        *,
        form: Literal["block", "full"] = "block",
        block: Count | None = None,
    ) -> None:
        super().__init__(plan)
        if form == "full" and block is not None:
            raise UserError(f"attn_res(form=full) has no blocks, got block={block}; leave it out")
        self.form = form
        self.block = block or -(-plan.depth // 8)
        self.norms = self.make_site_norms()
        self.w = empty_parameter(len(plan.sites), plan.dim)
        self.g = empty_parameter(len(plan.sites), plan.dim)
        self.final_norm = self.make_norm()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.w)
        nn.init.ones_(self.g)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # A new block moves the running sum to the finished sources.
        running, *finished = state
        h = self._mix_sources(state, site.index - 1) if finished else running
        return self.norm(site)(h), ((*state, running) if self._starts_block(site) else state)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        running, *finished = state
        new_sum = branch.to(running.dtype)  # under autocast a branch is coarser than the stream
        return (new_sum if self._starts_block(site) else running + branch), *finished

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(self._mix_sources(state, len(self.plan.sites) - 1))

    def trunk(self, state: State) -> Tensor:
        # The sum of all sources is the stream of Pre-LN.
        return torch.stack(state).sum(0)

    def no_decay(self) -> set[str]:
        return super().no_decay() | {"w", "g"}

    def _starts_block(self, site: Site) -> bool:
        """Return whether a block begins here; in the full form every sub-layer is one."""
        return self.form == "full" or (site.first and site.layer % self.block == 0)

    def _mix_sources(self, sources: State, number: int) -> Tensor:
        values = torch.stack(sources, -2)  # (..., sources, dim)
        with autocast_disabled(values):
            exact = values.to(statistics_dtype(values))
            keys = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6)
            scores = (keys * (self.w[number] * self.g[number])).sum(-1, keepdim=True)
            return (scores.softmax(-2) * exact).sum(-2).to(values.dtype)
