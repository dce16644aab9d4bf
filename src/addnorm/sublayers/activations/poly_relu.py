"""PolyReLU: powers of ReLU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.norms.base import statistics_dtype
from addnorm.sublayers.activations.base import Activation, register


@register(
    Card(
        name="poly_relu",
        title="PolyReLU",
        formula="w_0 r^3 + w_1 r^2 + w_2 r + b, r = max(u, 0)",
        paper=(
            "Zhuo et al., Polynomial Composition Activations: Unleashing the Dynamics of Large "
            "Language Models, 2024, arXiv 2411.03884"
        ),
        summary="Three powers of ReLU, weighted by learned scalars.",
    )
)
class PolyReLU(Activation):
    """Weighted sum of three powers of ReLU.

    y = weight[0] r^3 + weight[1] r^2 + weight[2] r + bias,  r = relu(u)

    u, y: (B, L, hidden)
    weight: (3), starts at 1 / 3
    bias: scalar, starts at 0

    Zhuo et al. 2024, section 2.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden)
        self.weight, self.bias = nn.Parameter(torch.empty(3)), nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 1 / 3)
        nn.init.zeros_(self.bias)

    def forward(self, value: Tensor, gate: Tensor | None = None) -> Tensor:
        r = F.relu(value).to(statistics_dtype(value))
        a, b, c = self.weight.to(r.dtype).unbind()
        return (((a * r + b) * r + c) * r + self.bias.to(r.dtype)).to(value.dtype)
