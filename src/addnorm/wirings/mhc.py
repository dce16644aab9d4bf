"""mHC: hyper-connections whose mixing is kept doubly stochastic."""

import itertools
import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import NonNegative
from addnorm.norms.base import statistics_dtype
from addnorm.wirings.base import (
    State,
    Streams,
    Wiring,
    WiringModule,
    autocast_disabled,
    empty_parameter,
    register,
)

Iterations = Annotated[int, Field(ge=1, le=1000)]
MAX_PERMUTED_STREAMS = 5
"""Streams up to which all permutations can be mixed; 6 would have 720."""


@register(
    Card(
        name="mhc",
        title="Manifold-constrained hyper-connections",
        formula=(
            "h = sum_i pre_i H_i; H_j <- sum_i R_ij H_i + post_j f(N(h)), R doubly stochastic; "
            "y = N_final(sum_i end_i H_i)"
        ),
        paper="Xie et al., mHC: Manifold-Constrained Hyper-Connections, 2025, arXiv 2512.24880",
        summary="Hyper-connections that can neither amplify nor lose the stream; in DeepSeek-V4.",
        reduces_to=(("mhc(gate=0.0)", "pre_ln"),),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class MHC(Wiring):
    """n streams mixed by a doubly stochastic matrix computed from each token.

    v        = RMS(vec(H))
    pre      = sigmoid(a_pre v Phi_pre + b_pre)
    post     = 2 sigmoid(a_post v Phi_post + b_post)
    R        = Sinkhorn(a_res v Phi_res + b_res)                  mixing=sinkhorn
    R        = sum_p softmax(a_res v Phi_res + b_res)_p Perm_p    mixing=permutations, n! of them
    h        = sum_i pre_i H_i                     what the sub-layer reads, before its norm
    H_j,next = sum_i R_ij H_i + post_j f(N(h))
    y        = N_final(sum_i sigmoid(a_end v Phi_end + b_end)_i H_i)

    H: (..., n, dim) the streams, all start as the embedding
    Phi: (n dim, 2 n + m) per site, m = n^2 or n!, and (n dim, n) at the end, start Xavier-uniform
    a: three scalars per site and one at the end, start at `gate`
    b: (2 n + m) per site and (n) at the end, start at 0; with start=one_hot the mixing starts
        near the identity and each site reads and writes mostly one stream
    N: one norm per site, and N_final

    Xie et al. 2025, section 4; Sinkhorn as in DeepSeek's TileKernels: rows by softmax, then columns
    and rows in turn, columns last. mHC-lite, arXiv 2601.05732, is mhc(start=one_hot, end=sum,
    mixing=permutations): rows and columns sum to 1 exactly.
    """

    # NOTE[DIFF]: no start was released but those for random tests; gates of 0.01 are the paper's,
    # Xavier for Phi and zero biases are Megatron's. With Phi = 0 as well the streams would stay
    # equal forever. start=one_hot is the start of mhc-lite (Phi = 0, biases break the symmetry).
    # NOTE[DIFF]: streams are mixed by R transposed as in DeepSeek's code; direction=plain mixes by
    # R as in Megatron, whose end is the mean of the streams (end=mean; hyper-connections have the
    # sum).
    # NOTE[DIFF]: mHC-lite has a gain of v, 1 at start, which Phi can absorb; omitted here.
    # NOTE[DIFF]: DeepSeek's code adds 1e-6 to `pre` and to the weights of the end; omitted here.
    # The eps inside RMS and Sinkhorn is its 1e-6.
    def __init__(
        self,
        plan: Plan,
        *,
        streams: Streams = 4,
        iterations: Iterations = 20,
        gate: NonNegative = 0.01,
        start: Literal["flat", "one_hot"] = "flat",
        direction: Literal["transposed", "plain"] = "transposed",
        end: Literal["learned", "mean", "sum"] = "learned",
        mixing: Literal["sinkhorn", "permutations"] = "sinkhorn",
    ) -> None:
        super().__init__(plan)
        if mixing == "permutations" and streams > MAX_PERMUTED_STREAMS:
            raise UserError(
                f"streams: expected at most {MAX_PERMUTED_STREAMS} with mixing=permutations, whose "
                f"weights grow with their factorial, got {streams}"
            )
        if mixing == "permutations" and iterations != 20:
            raise UserError(
                f"mhc(mixing=permutations) has no iterations, got {iterations}; leave them out"
            )
        self.streams, self.iterations = streams, iterations
        self.direction, self.end, self.mixing = direction, end, mixing
        sizes = {"sinkhorn": streams**2, "permutations": math.factorial(streams)}
        self.norms = self.make_site_norms()
        self.mixers = nn.ModuleList(
            _Gates(
                streams * plan.dim,
                [streams, streams, sizes[mixing]],
                gate=gate,
                initial_stream=site.index % streams if start == "one_hot" else None,
            )
            for site in plan.sites
        )
        learned = end == "learned"
        self.end_mixer = _Gates(streams * plan.dim, [streams], gate=gate) if learned else None
        self.final_norm = self.make_norm()

    def open(self, x: Tensor) -> State:
        return (x.unsqueeze(-2).expand(*x.shape[:-1], self.streams, x.shape[-1]),)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # Mix one input for the sub-layer, and the streams among themselves.
        (streams,) = state
        with autocast_disabled(streams):
            pre, post, mixing = self.mixers[site.index](streams)
            matrix = self._doubly_stochastic(mixing)
            pre, post = pre.sigmoid(), 2 * post.sigmoid()
            matrix = (matrix.mT if self.direction == "transposed" else matrix).to(streams.dtype)
            kept = matrix @ streams
        h = (pre.to(streams.dtype).unsqueeze(-1) * streams).sum(-2)
        return self.norm(site)(h), (kept, post.to(streams.dtype))

    def _doubly_stochastic(self, logits: Tensor) -> Tensor:
        """Return (..., n, n) matrices whose rows and columns sum to 1."""
        n = self.streams
        if self.mixing == "sinkhorn":
            return sinkhorn(logits.unflatten(-1, (n, n)), self.iterations)
        return mix_permutations(logits, n)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        kept, post = state
        return (kept + post.unsqueeze(-1) * branch.unsqueeze(-2),)

    def close(self, state: State) -> Tensor:
        # A learned or a plain sum of the streams.
        (streams,) = state
        if self.end_mixer is None:
            return self.apply_final_norm(
                streams.mean(-2) if self.end == "mean" else streams.sum(-2)
            )
        with autocast_disabled(streams):
            (weights,) = self.end_mixer(streams)
            weights = weights.sigmoid().to(streams.dtype)
        return self.apply_final_norm((weights.unsqueeze(-1) * streams).sum(-2))

    def trunk(self, state: State) -> Tensor:
        return state[0].mean(-2)


class _Gates(WiringModule):
    """a_g * RMS(vec(H)) Phi_g + b_g for several groups g."""

    def __init__(
        self, width: int, groups: list[int], *, gate: float, initial_stream: int | None = None
    ) -> None:
        super().__init__()
        self.groups, self.gate, self.initial_stream = groups, gate, initial_stream
        self.phi = empty_parameter(width, sum(groups))
        self.a = empty_parameter(len(groups))
        self.b = empty_parameter(sum(groups))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Small gates on random maps; or zero maps, with biases that distinguish the streams.
        nn.init.constant_(self.a, self.gate)
        nn.init.zeros_(self.b)
        if self.initial_stream is None:
            nn.init.xavier_uniform_(self.phi)
            return
        nn.init.zeros_(self.phi)
        n = self.groups[0]
        one = torch.eye(n)[self.initial_stream] * 2 - 1
        # Close to the identity: the entries of its matrix, or the first of all permutations.
        is_matrix = self.groups[2] == n * n
        identity = torch.eye(n).flatten() if is_matrix else torch.eye(self.groups[2])[0]
        mixing = (identity - 1) * 8
        with torch.no_grad():
            self.b.copy_(torch.cat([one, one, mixing]))

    def forward(self, streams: Tensor) -> list[Tensor]:
        """Return one tensor (..., size) per group, in float32 or better."""
        v = streams.flatten(-2).to(statistics_dtype(streams))
        v = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6)
        values = torch.split(v @ self.phi.to(v.dtype), self.groups, -1)
        biases = torch.split(self.b, self.groups)
        return [a * value + b for a, value, b in zip(self.a, values, biases, strict=True)]


def mix_permutations(logits: Tensor, n: int) -> Tensor:
    """Return the mean of all n! permutation matrices, weighted by a softmax of (..., n!) logits."""
    rows = torch.tensor(list(itertools.permutations(range(n))), device=logits.device)
    matrices = F.one_hot(rows, n).to(logits.dtype)  # the identity comes first
    return torch.einsum("...p,pij->...ij", logits.softmax(-1), matrices)


def sinkhorn(logits: Tensor, iterations: int, eps: float = 1e-6) -> Tensor:
    """Return (..., n, n) matrices whose rows and columns sum to 1; columns exactly, rows nearly."""
    matrix = logits.softmax(-1) + eps
    matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
    return matrix
