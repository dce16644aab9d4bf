"""Hyper-connections: several copies of the stream, mixed by learned weights at every sub-layer."""

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Positive
from addnorm.norms.base import make_norm, statistics_dtype
from addnorm.wirings.base import (
    State,
    Streams,
    Wiring,
    WiringModule,
    autocast_disabled,
    empty_parameter,
    register,
)


@register(
    Card(
        name="hyper",
        title="Hyper-connections",
        group="multi-stream",
        formula="h = sum_i Am_i H_i; H_j <- sum_i Ar_ij H_i + B_j f(N(h)); y = N_final(sum_i H_i)",
        paper="Zhu et al., Hyper-Connections, 2024, arXiv 2409.19606",
        summary="Learns how strongly each depth is connected to each other; starts as Pre-LN.",
        reduces_to=(("hyper", "pre_ln"), ("hyper(streams=1, dynamic=False)", "pre_ln")),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class HyperConnections(Wiring):
    """n streams with learned reading, mixing and writing.

    h        = sum_i Am_i H_i                      what the sub-layer reads, before its norm
    H_j,next = sum_i Ar_ij H_i + B_j f(N(h))
    y        = N_final(sum_i H_i)

    H: (..., n, dim) the streams, all start as the embedding
    Am: (n) per site, starts one-hot at index mod n
    Ar: (n, n) per site, starts as the identity
    B: (n) per site, starts at 1
    out, ffn_out: start times out_gain
    N: one norm per site, and N_final

    dynamic=True adds s * tanh(LN(H_i) W) to each, one coefficient per token and stream: W starts at
    0, s at 0.01. Streams have an axis of their own; folded into the batch, as in some ports, they
    break masks and caches.

    Zhu et al. 2024, algorithms 1 and 2.
    """

    # NOTE[DIFF]: the paper scales the deviation of output matrices by sqrt(n); the direction is
    # ambiguous and common ports do not do it. out_gain=2.0 or 0.5 does it for four streams.
    def __init__(
        self,
        plan: Plan,
        *,
        streams: Streams = 4,
        dynamic: bool = True,
        tanh: bool | None = None,
        out_gain: Positive = 1.0,
    ) -> None:
        super().__init__(plan)
        if tanh is not None and not dynamic:
            raise UserError(
                "hyper(dynamic=False) has nothing that tanh could bound; leave tanh out"
            )
        self.streams, self.out_gain = streams, out_gain
        self.norms = self.make_site_norms()
        self.mixers = nn.ModuleList(
            _Mixer(
                site.index % streams,
                streams,
                _DynamicCoefficients(plan.dim, streams, tanh is not False) if dynamic else None,
            )
            for site in plan.sites
        )
        self.final_norm = self.make_norm()

    def open(self, x: Tensor) -> State:
        return (x.unsqueeze(-2).expand(*x.shape[:-1], self.streams, x.shape[-1]),)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # Mix one input for the sub-layer, and the streams among themselves.
        (streams,) = state
        mixing, writing = self.mixers[site.index](streams)
        with autocast_disabled(streams):
            mixtures = mixing.transpose(-1, -2).to(streams.dtype) @ streams  # (..., 1 + n, dim)
        h, kept = mixtures[..., 0, :], mixtures[..., 1:, :]
        return self.norm(site)(h), (kept, writing.to(streams.dtype))

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        kept, writing = state
        return (kept + writing.unsqueeze(-1) * branch.unsqueeze(-2),)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0].sum(-2))

    def trunk(self, state: State) -> Tensor:
        return state[0].mean(-2)

    def gain(self, role: str, site: Site | None = None) -> float:
        return self.out_gain if role in ("out", "ffn_out") else 1.0

    def no_decay(self) -> set[str]:
        return {name for name, _ in self.named_parameters() if not name.endswith("_map")}


class _Mixer(WiringModule):
    """Coefficients of one site: (Am | Ar) as (..., n, 1 + n), B as (..., n)."""

    def __init__(
        self, initial_stream: int, streams: int, dynamic: "_DynamicCoefficients | None"
    ) -> None:
        super().__init__()
        self.initial_stream = initial_stream
        self.mixing = empty_parameter(streams, 1 + streams)
        self.writing = empty_parameter(streams)
        self.dynamic = dynamic
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.mixing.zero_()
            self.mixing[self.initial_stream, 0] = 1
            nn.init.eye_(self.mixing[:, 1:])
            self.writing.fill_(1)

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Return the coefficients, (..., n, 1 + n) and (..., n)."""
        if self.dynamic is None:
            return self.mixing, self.writing
        mixing, writing = self.dynamic(streams)
        return self.mixing + mixing, self.writing + writing


class _DynamicCoefficients(WiringModule):
    """What each token adds to the coefficients, in float32 or better."""

    def __init__(self, dim: int, streams: int, tanh: bool) -> None:
        super().__init__()
        self.bounded = nn.Tanh() if tanh else nn.Identity()
        self.norm = make_norm("layer", dim)
        self.mixing_map = empty_parameter(dim, 1 + streams)
        self.writing_map = empty_parameter(dim, 1)
        self.mixing_scale = empty_parameter()
        self.writing_scale = empty_parameter()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for tensor in (self.mixing_map, self.writing_map):
            nn.init.zeros_(tensor)
        for scale in (self.mixing_scale, self.writing_scale):
            nn.init.constant_(scale, 0.01)

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Return the terms that tokens add to the coefficients, (..., n, 1 + n) and (..., n)."""
        with autocast_disabled(streams):
            seen = self.norm(streams.to(statistics_dtype(streams)))
            mixing = self.bounded(seen @ self.mixing_map.to(seen.dtype))
            writing = self.bounded(seen @ self.writing_map.to(seen.dtype)).squeeze(-1)
            return self.mixing_scale * mixing, self.writing_scale * writing
