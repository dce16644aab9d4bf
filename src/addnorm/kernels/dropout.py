"""Dropout that does not cost more than the layer it stands behind."""

import torch
from torch import Tensor, nn

STEPS = 1 << 16
"""Values of one draw: a rate is met to one part in so many."""


class Dropout(nn.Dropout):
    """A share of the features set to zero in training, the others scaled so that the mean stays.

    y = x * keep / (1 - rate),    keep ~ Bernoulli(1 - rate), one draw a feature

    rate: `p`

    torch draws one number of its generator a feature and turns it into a float; on a CPU that takes
    longer than the feed-forward of a narrow model. Here four features share a draw of 64 bits.
    Elsewhere, and where a graph is compiled, it is torch's own.

    Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting, 2014.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x, some of it zero while training."""
        own = x.device.type == "cpu" and not torch.compiler.is_compiling() and not self.inplace
        if not own or not self.training or self.p in (0.0, 1.0):
            return super().forward(x)
        return x * keep(x, self.p)


def keep(x: Tensor, rate: float) -> Tensor:
    """What x is multiplied with: 0, or 1 / (1 - rate), for each of its features."""
    dropped = min(round(rate * STEPS), STEPS - 1)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    draws = words.view(torch.int16)[: x.numel()].view(x.shape)
    return (draws >= dropped - STEPS // 2).to(x.dtype).mul_(STEPS / (STEPS - dropped))
