"""StarReLU: squared ReLU with a scale and a shift."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.registry import Finite
from addnorm.sublayers.activations.base import Activation, register


@register(
    Card(
        name="star_relu",
        title="StarReLU",
        formula="s * max(u, 0) ** 2 + b",
        paper="Yu et al., MetaFormer Baselines for Vision, 2022, arXiv 2210.13452",
        summary="Squared ReLU with a learned scale and shift.",
    )
)
class StarReLU(Activation):
    """Squared ReLU with one scale and one shift.

    y = scale * relu(u) ** 2 + shift

    u, y: (B, L, hidden)
    scale: scalar, starts at 1, or at the option's value
    shift: scalar, starts at 0, or at the option's value

    Yu et al. 2022, section 2.1, derives 0.8944 and -0.4472: mean 0 and variance 1 for u ~ N(0, 1).
    """

    # NOTE[DIFF]: the scalars start at 1 and 0 as in timm, not at the paper's values.
    def __init__(self, hidden: int, *, scale: Finite = 1.0, shift: Finite = 0.0) -> None:
        super().__init__(hidden)
        self.start = scale, shift
        self.scale, self.shift = nn.Parameter(torch.empty(())), nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.start[0])
        nn.init.constant_(self.shift, self.start[1])

    def forward(self, value: Tensor, gate: Tensor | None = None) -> Tensor:
        return (self.scale * F.relu(value).square() + self.shift).to(value.dtype)
