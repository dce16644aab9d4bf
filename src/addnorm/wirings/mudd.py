"""MUDD: DenseFormer whose weights of earlier layers depend on the token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.norms.base import make_norm, statistics_dtype
from addnorm.wirings.base import (
    State,
    Wiring,
    WiringModule,
    autocast_disabled,
    empty_parameter,
    register,
)


@register(
    Card(
        name="mudd",
        title="Dynamic dense connections (MUDD)",
        group="dense",
        formula=(
            "x_i = Layer_i(z), Pre-LN inside; z <- sum_j (b[i, j] + D_ij(x_i)) * x_j; at the end y "
            "= N_final(z)"
        ),
        paper=(
            "Xiao et al., MUDDFormer: Breaking Residual Bottlenecks in Transformers via Multiway "
            "Dynamic Dense Connections, 2025, arXiv 2502.12170"
        ),
        summary="Every token chooses which earlier layers it reads again.",
        reduces_to=(("mudd", "pre_ln"), ("mudd", "denseformer")),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class MUDD(Wiring):
    """Pre-LN layers with a weighted sum of all layers, computed from the token, between them.

    x_i = Layer_i(z_{i-1})                               i from 1, Pre-LN inside
    z_i = sum_{j <= i} (b[i, j] + D_ij) * x_j            x_0 = z_0 = embedding
    D_i = W_2 gelu(W_1 RMS(x_i))                         (..., i + 1) per token
    y   = N_final(z_depth)

    x_j: (..., dim) raw output of layer j, before the sum
    b: scalar per pair; b[i, i] starts at 1, the others at 0
    W_1: (i + 1, dim) after layer i, starts at N(0, 1 / dim); four times as many rows after the last
    W_2: (i + 1, rows of W_1), starts at 0
    N: one norm per site, and N_final; RMS has no gain

    Xiao et al. 2025, section 2, with one way. Start values: the released JAX code.
    """

    multiplier_place = "none"  # layers are summed with learned weights

    num_state_tensors = None

    # NOTE[DIFF]: the paper has four ways: queries, keys, values and the stream of the next layer
    # are four sums. Here one sum feeds them all, because a sub-layer reads one tensor.
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.norms = self.make_site_norms()
        self.mixers = nn.ModuleList(
            _DenseMixer(plan.dim, layer + 1, rows=(layer + 1) * (4 if layer == plan.depth else 1))
            for layer in range(1, plan.depth + 1)
        )
        self.final_norm = self.make_norm()

    def open(self, x: Tensor) -> State:
        return x, x

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return self.norm(site)(state[0]), state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # The last sub-layer of a layer stores its output and sums up the history.
        x, *history = state
        x = x + branch
        if not site.last:
            return (x, *history)
        history = [*history, x]
        weights = self.mixers[site.layer](x).to(x.dtype)
        mixture = (weights.unsqueeze(-1) * torch.stack(history, -2)).sum(-2)
        return (mixture, *history)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])


class _DenseMixer(WiringModule):
    """Weights of `sources` tensors for every token, in float32 or better."""

    def __init__(self, dim: int, sources: int, rows: int) -> None:
        super().__init__()
        self.norm = make_norm("rms(affine=False)", dim)
        self.b = empty_parameter(sources)
        self.w_1, self.w_2 = empty_parameter(rows, dim), empty_parameter(sources, rows)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.b)
        nn.init.ones_(self.b[-1:])
        nn.init.normal_(self.w_1, std=self.w_1.shape[1] ** -0.5)
        nn.init.zeros_(self.w_2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the weights, (..., sources)."""
        with autocast_disabled(x):
            seen = self.norm(x.to(statistics_dtype(x)))
            hidden = F.gelu(F.linear(seen, self.w_1.to(seen.dtype)))
            return F.linear(hidden, self.w_2.to(seen.dtype)) + self.b.to(seen.dtype)
