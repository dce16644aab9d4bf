"""Gated residuals: GTrXL's gates in place of the add."""

from typing import Literal

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Finite
from addnorm.wirings.base import State, Wiring, WiringModule, register

GATE_MAPS = {
    "gru": ("reset_y", "reset_x", "update_y", "update_x", "candidate_y", "candidate_x"),
    "highway": ("gate",),
    "input": ("gate",),
    "output": ("gate",),
    "sig_tanh": ("gate", "candidate_y"),
}


@register(
    Card(
        name="gated",
        title="Gated residual (GTrXL)",
        formula="x <- gate(x, relu(f(N(x)))); gru: (1 - z) * x + z * c; y = N_final(x)",
        paper=(
            "Parisotto et al., Stabilizing Transformers for Reinforcement Learning, 2019, "
            "arXiv 1910.06764"
        ),
        summary="Each sub-layer may overwrite the stream; a bias makes it start near the identity.",
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class Gated(Wiring):
    """Pre-LN whose add is a gate.

    y      = relu(f(N(x)))
    x_next = (1 - z) * x + z * c                        gate=gru, with
             r = s(W_r y + U_r x), z = s(W_z y + U_z x - b), c = tanh(W_c y + U_c (r * x))
    x_next = s(W x + b) * x + (1 - s(W x + b)) * y      gate=highway
    x_next = s(W x) * x + y                             gate=input
    x_next = x + s(W x - b) * y                         gate=output
    x_next = x + s(W y - b) * tanh(U y)                 gate=sig_tanh
    out    = N_final(x)

    x, y: (..., dim) the stream and the branch
    W, U: (dim, dim), start Xavier-uniform, no bias vectors
    b: (dim), starts at `bias`, 2 unless given: large is near the identity; s is the sigmoid
    N: one norm per site, and N_final

    Parisotto et al. 2019, section 3.2; highway: Srivastava et al. 2015, arXiv 1505.00387.
    Pitfall: z of torch.nn.GRUCell is the complement of this z.
    """

    multiplier_place = "none"  # a gate mixes stream and branch

    # NOTE[DIFF]: the paper has no final norm; here there is one, as in all Pre-LN wirings.
    def __init__(
        self,
        plan: Plan,
        *,
        gate: Literal["gru", "highway", "input", "output", "sig_tanh"] = "gru",
        bias: Finite | None = None,
    ) -> None:
        super().__init__(plan)
        if gate == "input" and bias is not None:
            raise UserError(f"gated(gate=input) has no bias to start at {bias}; leave bias out")
        bias = 2.0 if bias is None else bias
        self.norms = self.make_site_norms()
        self.gates = nn.ModuleList(_Gate(gate, plan.dim, bias) for _ in plan.sites)
        self.final_norm = self.make_norm()

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return self.norm(site)(state[0]), state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        (x,) = state
        return (self.gates[site.index](x, branch.relu()),)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])


class _Gate(WiringModule):
    """Gate of one site; `kind` is the wiring's option `gate`."""

    def __init__(self, kind: str, dim: int, bias: float) -> None:
        super().__init__()
        self.kind, self.start = kind, bias
        self.maps = nn.ModuleDict(
            {name: nn.Linear(dim, dim, bias=False) for name in GATE_MAPS[kind]}
        )
        self.bias = nn.Parameter(torch.empty(dim)) if kind != "input" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in self.maps.parameters():
            nn.init.xavier_uniform_(weight)
        if self.bias is not None:
            nn.init.constant_(self.bias, self.start)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the next stream from the stream `x` and the rectified branch `y`."""
        maps, bias = self.maps, self.bias
        if self.kind == "gru":
            reset = (maps["reset_y"](y) + maps["reset_x"](x)).sigmoid()
            update = (maps["update_y"](y) + maps["update_x"](x) - bias).sigmoid()
            candidate = (maps["candidate_y"](y) + maps["candidate_x"](reset * x)).tanh()
            return (1 - update) * x + update * candidate
        if self.kind == "highway":
            carry = (maps["gate"](x) + bias).sigmoid()
            return carry * x + (1 - carry) * y
        if self.kind == "input":
            return maps["gate"](x).sigmoid() * x + y
        if self.kind == "output":
            return x + (maps["gate"](x) - bias).sigmoid() * y
        return x + (maps["gate"](y) - bias).sigmoid() * maps["candidate_y"](y).tanh()
