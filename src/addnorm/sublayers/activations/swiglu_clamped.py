"""Clamped SwiGLU: a gate and a value with bounds."""

import torch
from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.registry import NonNegative, Positive
from addnorm.sublayers.activations.base import Activation, register


@register(
    Card(
        name="swiglu_clamped",
        title="Clamped SwiGLU",
        formula="(clamp(u, -c, c) + offset) * g sigmoid(slope * g), g <- min(g, c)",
        paper="OpenAI, gpt-oss-120b and gpt-oss-20b Model Card, 2025, arXiv 2508.10925",
        summary="SwiGLU whose inputs cannot grow beyond a bound; gpt-oss, DeepSeek-V4.",
    )
)
class ClampedSwiGLU(Activation):
    """SwiGLU with bounded value and gate.

    y = (clamp(u, -limit, limit) + offset) * g * sigmoid(slope * g),  g = min(gate, limit)

    u, gate: (B, L, hidden)
    limit: constant, 7 in gpt-oss, 10 in DeepSeek-V4
    slope: constant, 1.702 in gpt-oss, 1 in DeepSeek-V4
    offset: constant, 1 in gpt-oss, 0 in DeepSeek-V4

    Code: transformers, modeling_gpt_oss.py. Without a limit, with slope 1 and offset 0: SwiGLU.
    """

    is_gated = True

    def __init__(
        self,
        hidden: int,
        *,
        limit: Positive = 7.0,
        slope: Positive = 1.702,
        offset: NonNegative = 1.0,
    ) -> None:
        super().__init__(hidden)
        self.limit, self.slope, self.offset = limit, slope, offset

    def forward(self, value: Tensor, gate: Tensor | None = None) -> Tensor:
        assert gate is not None
        gate, value = gate.clamp(max=self.limit), value.clamp(-self.limit, self.limit)
        return (value + self.offset) * (gate * torch.sigmoid(self.slope * gate))

    def extra_repr(self) -> str:
        return f"limit={self.limit}, slope={self.slope}, offset={self.offset}"
