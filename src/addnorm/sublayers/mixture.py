"""Mixture of experts: many feed-forward networks, of which a router chooses a few for every token.

The experts are ordinary `FeedForward` modules, so that their matrices have the roles, names and
kernels of a dense feed-forward.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.plan import Plugs, Shape
from addnorm.kernels.linear import apply_linear
from addnorm.sublayers.base import (
    Sublayer,
    check_bool,
    check_input,
    check_positive_int,
    init_normal_,
)
from addnorm.sublayers.feedforward import FeedForward

ROUTER_STD = 0.02
"""Standard deviation of the router's initial weights."""


class MixtureOfExperts(Sublayer):
    """The weighted outputs of the k feed-forward networks that a router chooses for a token.

    p = softmax(router(x))
    y = sum of p_e / P * expert_e(x) over the k experts e of largest p_e
    y = y + sigmoid(shared_gate(x)) * shared_expert(x)    with `shared_hidden`

    x, y: (B, L, dim)
    router: dim -> experts; has a bias if the experts have biases
    P: sum of the k chosen p_e, or 1 without `normalize`
    expert_e: `FeedForward` with `hidden` features

    Each expert runs on the tokens that chose it. While a program is traced or compiled, each runs
    on all tokens, since numbers of tokens that depend on data cannot be traced.

    Shazeer et al., Outrageously Large Neural Networks, 2017, arXiv 1701.06538; without noise and
    capacity, as in Jiang et al., Mixtral of Experts, 2024, arXiv 2401.04088; shared expert: Qwen,
    Qwen1.5-MoE, 2024. Pitfall: nothing here balances the experts. Train converted models with their
    routers frozen, or add a loss of `route` to your own loop.

    >>> mixture = MixtureOfExperts(6, experts=4, k=2, activation="swiglu", bias=False)
    >>> mixture(torch.randn(2, 5, 6)).shape
    torch.Size([2, 5, 6])
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        experts: int,
        k: int = 2,
        normalize: bool = True,
        shared_hidden: int | None = None,
        activation: str = "relu",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive_int("experts", experts, min_value=2)
        check_positive_int("experts_per_token", k)
        check_bool("normalize_routes", normalize)
        if k > experts:
            raise UserError(f"experts_per_token: expected at most experts={experts}, got {k}")

        def make_expert(width: int | None) -> FeedForward:
            return FeedForward(dim, width, activation=activation, bias=bias, dropout=dropout)

        self.dim, self.k, self.normalize = dim, k, normalize
        self.router = nn.Linear(dim, experts, bias=bias)  # gpt-oss has both
        self.experts = nn.ModuleList(make_expert(hidden) for _ in range(experts))
        self.shared_expert = None if shared_hidden is None else make_expert(shared_hidden)
        self.shared_gate = None if shared_hidden is None else nn.Linear(dim, 1, bias=False)

    @property
    def shape(self) -> Shape:
        return self.networks()[0].shape

    def networks(self) -> list[FeedForward]:
        """Return all experts, the shared one last."""
        shared = [] if self.shared_expert is None else [self.shared_expert]
        return [*(each for each in self.experts if isinstance(each, FeedForward)), *shared]

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        for network in self.networks():
            yield from network.roles()
        if self.router.bias is not None:
            yield "bias", self.router.bias

    def find_plug_conflict(self, plugs: Plugs) -> str | None:
        if plugs.hidden is None and plugs.inner is None:
            return None
        return (
            "the wiring has norms or scales inside the feed-forward, which a mixture of experts "
            "does not take; leave out experts, or choose another wiring"
        )

    def reset_parameters(self) -> None:
        init_normal_(self.router.weight, ROUTER_STD)
        if self.router.bias is not None:
            nn.init.zeros_(self.router.bias)
        if self.shared_gate is not None:
            init_normal_(self.shared_gate.weight, ROUTER_STD)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights and the numbers of the experts of every token, (B, L, k) each."""
        logits = apply_linear(self.router, x)
        # In half precision, experts of nearly equal probability would be equal.
        dtype = torch.promote_types(logits.dtype, torch.float32)
        weights, index = logits.softmax(-1, dtype=dtype).topk(self.k, dim=-1)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights.to(x.dtype), index

    def forward(self, x: Tensor) -> Tensor:
        check_input("the input of a mixture of experts", x, self.dim)
        weights, index = (each.flatten(0, 1) for each in self.route(x))  # (B * L, k)
        tokens = x.flatten(0, 1)
        run = self._run_all if torch.compiler.is_compiling() else self._run_chosen
        y = run(tokens, weights, index).view_as(x)
        if self.shared_expert is None or self.shared_gate is None:
            return y
        return y + torch.sigmoid(apply_linear(self.shared_gate, x)) * self.shared_expert(x)

    def _run_chosen(self, tokens: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        y = torch.zeros_like(tokens)
        for number in index.unique().tolist():
            row, place = (index == number).nonzero(as_tuple=True)
            output = self.experts[number](tokens[None, row])[0]
            y = y.index_add(0, row, weights[row, place, None] * output)
        return y

    def _run_all(self, tokens: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        routes = weights.new_zeros(tokens.shape[0], len(self.experts)).scatter(1, index, weights)
        y = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            y = y + routes[:, number, None] * expert(tokens[None])[0]
        return y

    def extra_repr(self) -> str:
        return f"experts={len(self.experts)}, k={self.k}, normalize={self.normalize}"
