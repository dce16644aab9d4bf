"""xIELU: an integrated ELU."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.sublayers.activations.base import Activation, register


@register(
    Card(
        name="xielu",
        title="xIELU",
        formula="p u^2 + beta u for u > 0, n (expm1(u) - u) + beta u for u <= 0",
        paper="Huang and Schlag, Deriving Activation Functions Using Integration, 2024, arXiv "
        "2411.13010",
        summary="The integral of an ELU with two learned slopes; Apertus uses it.",
    )
)
class XIELU(Activation):
    """Quadratic above zero, an integrated ELU below, both learned.

    y = p * u ** 2 + beta * u                     u > 0
    y = n * (expm1(min(u, -1e-6)) - u) + beta * u     u <= 0
    p = softplus(alpha_p), n = beta + softplus(alpha_n)

    u, y: (B, L, hidden)
    alpha_p: (1), starts at softplus^-1(0.8)
    alpha_n: (1), starts at softplus^-1(0.8 - beta)
    beta: constant, 0.5

    Huang and Schlag 2024; code: transformers, activations.py.
    """

    START, EPS = 0.8, -1e-6

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.beta = 0.5
        self.alpha_p, self.alpha_n = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter, value in (
            (self.alpha_p, self.START),
            (self.alpha_n, self.START - self.beta),
        ):
            nn.init.constant_(parameter, math.log(math.expm1(value)))

    def forward(self, value: Tensor, gate: Tensor | None = None) -> Tensor:
        positive = F.softplus(self.alpha_p) * value * value
        bend = torch.expm1(value.clamp(max=self.EPS)) - value
        negative = (self.beta + F.softplus(self.alpha_n)) * bend
        return (torch.where(value > 0, positive, negative) + self.beta * value).to(value.dtype)
