"""Members: several predictions of one network, which share all weights but a scale and the head.

Gorishniy, Kotelnikov and Babenko, TabM: Advancing Tabular Deep Learning with Parameter-Efficient
Ensembling, 2024, arXiv 2410.24210; here its smaller form, "TabM-mini".
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

MemberAverage = Literal["outputs", "probabilities"]

MAX_SUMMED_OUTPUTS = 2
"""Outputs up to which a head is faster as a sum of products than as a batched matrix product, whose
backward copies its inputs."""


class MemberScale(nn.Module):
    """A factor of each member on the tokens of a row.

    x_m = t * r_m

    t: (B, tokens, dim) tokens of a row, the same for all members
    r: (members, tokens, dim), starts at N(0, 1) with one value for all features of a token

    The members must differ before a layer mixes the tokens, else they remain equal.

    Gorishniy et al. 2024, section 3.3.
    """

    def __init__(self, members: int, tokens: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, tokens, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            with torch.no_grad():
                self.weight.copy_(torch.randn(*self.weight.shape[:2], 1).expand_as(self.weight))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scale tokens, (B, tokens, dim), for each member; return (B, members, tokens, dim)."""
        return tokens[:, None] * self.weight


class MemberLinear(nn.Module):
    """A linear layer of its own for each member.

    y_m = W_m x_m + b_m

    x: (B, members, inputs); W: (members, outputs, inputs); b: (members, outputs); both start
        uniform in +-1 / sqrt(inputs)
    """

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(members, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        limit = self.weight.shape[-1] ** -0.5
        for parameter in (self.weight, self.bias):
            if not parameter.is_meta:
                nn.init.uniform_(parameter, -limit, limit)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, members, inputs) to (B, members, outputs)."""
        if self.weight.shape[1] <= MAX_SUMMED_OUTPUTS:
            columns = [(x * weight).sum(-1) for weight in self.weight.unbind(1)]
            return torch.stack(columns, -1) + self.bias
        return torch.baddbmm(self.bias[:, None], x.transpose(0, 1), self.weight.mT).transpose(0, 1)


def make_head(members: int, inputs: int, outputs: int) -> nn.Linear | MemberLinear:
    """Build the output layer of a model: one for all rows, or one for each member."""
    return MemberLinear(members, inputs, outputs) if members > 1 else nn.Linear(inputs, outputs)


def average_members(outputs: Tensor, average: MemberAverage) -> Tensor:
    """Return the prediction of all members together, (B, outputs).

    Args:
        outputs: (B, members, outputs) of each member
        average: "outputs" returns their mean; "probabilities" takes the outputs for logits and
            returns the logarithm of the mean probability, whose softmax is that mean
    """
    if average == "outputs":
        return outputs.mean(1)
    return outputs.log_softmax(-1).logsumexp(1) - math.log(outputs.shape[1])
