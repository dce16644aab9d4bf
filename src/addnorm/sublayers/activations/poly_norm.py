"""PolyNorm: normalized powers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.registry import Positive
from addnorm.norms.base import statistics_dtype
from addnorm.sublayers.activations.base import Activation, register


@register(
    Card(
        name="poly_norm",
        title="PolyNorm",
        formula="w_0 n(u^3) + w_1 n(u^2) + w_2 n(u) + b, n(v) = v / sqrt(mean(v^2) + eps)",
        paper=(
            "Zhuo et al., Polynomial Composition Activations: Unleashing the Dynamics of Large "
            "Language Models, 2024, arXiv 2411.03884"
        ),
        summary="Three normalized powers, weighted by learned scalars.",
    )
)
class PolyNorm(Activation):
    """Weighted sum of three normalized powers.

    y = weight[0] n(u^3) + weight[1] n(u^2) + weight[2] n(u) + bias

    u, y: (B, L, hidden); n divides by the root mean square over hidden features
    weight: (3), starts at 1 / 3
    bias: scalar, starts at 0

    Zhuo et al. 2024, section 2. weight = (0, 0, 1) is RMSNorm without gain. Powers are computed in
    float32 or better.
    """

    def __init__(self, hidden: int, *, eps: Positive = 1e-6) -> None:
        super().__init__(hidden)
        self.hidden, self.eps = hidden, eps
        self.weight, self.bias = nn.Parameter(torch.empty(3)), nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 1 / 3)
        nn.init.zeros_(self.bias)

    def forward(self, value: Tensor, gate: Tensor | None = None) -> Tensor:
        u = value.to(statistics_dtype(value))
        weights = self.weight.to(u.dtype).unbind()
        total = self.bias.to(u.dtype)
        for weight, power in zip(weights, (u**3, u**2, u), strict=True):
            total = total + weight * F.rms_norm(power, (self.hidden,), eps=self.eps)
        return total.to(value.dtype)
