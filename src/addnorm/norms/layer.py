"""LayerNorm: each token centered and scaled to unit variance, with the variants in use."""

from typing import Literal

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import NonNegative
from addnorm.kernels.add_norm.reference import NormParams
from addnorm.kernels.norm import layer_norm
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import register
from addnorm.norms.statistics import EpsMode, VarMode, standard_deviation


@register(
    Card(
        name="layer",
        title="LayerNorm",
        group="classic",
        formula="y = weight * (x - mean(x)) / sqrt(var(x) + eps) + bias",
        paper="Ba, Kiros and Hinton, Layer Normalization, 2016, arXiv 1607.06450",
        summary=(
            "The norm of the original Transformer; affine=False is LayerNorm-simple, var and "
            "eps_mode are tutorials' variants."
        ),
        reduces_to=(("layer", "layer(affine=False)"),),
    )
)
class LayerNorm(AffineNorm):
    """Center each token and divide by its standard deviation.

    y = weight * (x - mean(x)) / s + bias            gain "plain"
    y = (1 + weight) * (x - mean(x)) / s + bias      gain "one_plus", as in Nemotron
    s = sqrt(var(x) + eps)      eps_mode "inside", as torch.nn.LayerNorm
    s = sqrt(var(x)) + eps      eps_mode "outside", as in hand-written code

    x, y: (..., dim)
    weight: (dim), starts at 1, with gain "one_plus" at 0; absent with affine=False
        (LayerNorm-simple)
    bias: (dim), starts at 0; absent with bias=False or affine=False
    var: mean of squared deviations over dim ("biased") or over dim - 1 ("unbiased", the default of
        torch.std)

    Ba, Kiros and Hinton 2016, eq. 4; LayerNorm-simple: Xu et al., Understanding and Improving Layer
    Normalization, 2019, arXiv 1911.07013. Pitfall: with eps outside, a constant token amplifies
    gradients by 1 / eps instead of 1 / sqrt(eps).
    """

    # NOTE[DIFF]: Ba et al. write no eps; 1e-5 inside the root is torch's. BERT has 1e-12,
    # tensor2tensor 1e-6.
    # NOTE[DIFF]: LayerNorm-simple's released code divides by the unbiased deviation plus 1e-5:
    # layer(affine=False, var=unbiased, eps_mode=outside). With affine=False alone it is the formula
    # of the paper.
    def __init__(
        self,
        dim: int,
        *,
        eps: NonNegative = 1e-5,
        affine: bool = True,
        bias: bool = True,
        gain: Literal["plain", "one_plus"] = "plain",
        var: VarMode = "biased",
        eps_mode: EpsMode = "inside",
    ) -> None:
        if not affine and gain == "one_plus":
            raise UserError(
                "layer(affine=False) has no gain, got gain=one_plus; leave it out, or affine=False"
            )
        super().__init__(dim, affine=affine, bias=bias)
        self.eps, self.var, self.eps_mode = eps, var, eps_mode
        self.gain_offset = 1.0 if gain == "one_plus" else 0.0  # the gain is gain_offset + weight
        self.reset_parameters()

    @property
    def is_standard(self) -> bool:
        """Whether torch and the fused kernels compute this variant."""
        return self.var == "biased" and self.eps_mode == "inside"

    def kernel_params(self) -> NormParams | None:
        gain = self._full_gain(self.weight)
        return NormParams(False, gain, self.bias, self.eps) if self.is_standard else None

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        gain, bias = self._full_gain(_cast_like(self.weight, x)), _cast_like(self.bias, x)
        if self.is_standard:
            return layer_norm(x, gain, bias, self.eps)
        centered = x - x.mean(-1, keepdim=True)
        spread = standard_deviation(centered, var=self.var, eps=self.eps, eps_mode=self.eps_mode)
        y = centered / spread if gain is None else centered / spread * gain
        return y if bias is None else y + bias

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.weight is not None:
            nn.init.constant_(self.weight, 1 - self.gain_offset)

    def set_gain(self, value: float) -> None:
        # The gain is gain_offset + weight.
        super().set_gain(value)
        if self.weight is not None and self.gain_offset:
            with torch.no_grad():
                self.weight.add_(self.gain_offset * (value - 1))

    def _full_gain(self, weight: Tensor | None) -> Tensor | None:
        return weight if weight is None or not self.gain_offset else weight + self.gain_offset


def _cast_like(parameter: Tensor | None, x: Tensor) -> Tensor | None:
    if parameter is None or parameter.dtype == x.dtype:
        return parameter
    return parameter.to(x.dtype)
