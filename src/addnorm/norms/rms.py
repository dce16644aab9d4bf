"""RMSNorm: each token scaled to unit mean square, without centering."""

from typing import Literal

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Fraction, NonNegative
from addnorm.kernels.add_norm.reference import NormParams
from addnorm.kernels.norm import rms_norm
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import register
from addnorm.norms.statistics import EpsMode, root_mean_square


@register(
    Card(
        name="rms",
        title="RMSNorm",
        group="classic",
        formula="y = weight * x / sqrt(mean(x ** 2) + eps)",
        paper=("Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, arXiv 1910.07467"),
        summary=(
            "LayerNorm without its mean: the norm of T5, LLaMA and most language models since; "
            "gain=one_plus is Gemma's, share below 1 is pRMSNorm."
        ),
        reduces_to=(("rms", "scale"), ("rms(gain=one_plus)", "rms"), ("rms(bias=True)", "rms")),
    )
)
class RMSNorm(AffineNorm):
    """Divide each token by the root of its mean square.

    y = weight * x / s + bias             gain "plain"
    y = (1 + weight) * x / s + bias       gain "one_plus": weight decay pulls the gain to 1, not 0
    s = sqrt(mean(x[:k] ** 2) + eps)      eps_mode "inside"
    s = sqrt(mean(x[:k] ** 2)) + eps      eps_mode "outside"

    x, y: (..., dim)
    weight: (dim), starts at 1, with gain "one_plus" at 0; absent with affine=False
    bias: (dim), starts at 0; absent unless bias=True
    k: max(1, int(share * dim)), the features from which the size of all is estimated (pRMSNorm)

    Zhang and Sennrich 2019, eq. 4; T5's "layer norm" is this norm.
    """

    # NOTE[DIFF]: the paper writes no eps, and the authors' two files disagree: 1e-8 after the root
    # in torch, inside it in TensorFlow. The default here is T5's, 1e-6 inside.
    # NOTE[DIFF]: LLaMA's code rounds x / s to the input's precision before it multiplies with the
    # gain; here, as in torch.nn.RMSNorm, the product is rounded once.
    # NOTE[DIFF]: pRMSNorm's k is truncated as in the released code and never below 1, where that
    # code divides by no feature at all.
    def __init__(
        self,
        dim: int,
        *,
        eps: NonNegative = 1e-6,
        affine: bool = True,
        bias: bool = False,
        gain: Literal["plain", "one_plus"] = "plain",
        share: Fraction = 1.0,
        eps_mode: EpsMode = "inside",
    ) -> None:
        if not affine and (bias or gain == "one_plus"):
            raise UserError(
                "rms(affine=False) has neither gain nor bias, got "
                f"bias={bias} and gain={gain}; leave these out, or affine=False"
            )
        super().__init__(dim, affine=affine, bias=bias)
        self.eps, self.eps_mode = eps, eps_mode
        self.gain_offset = 1.0 if gain == "one_plus" else 0.0  # the gain is gain_offset + weight
        self.k = max(1, int(share * dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.weight is not None:
            nn.init.constant_(self.weight, 1 - self.gain_offset)

    def set_gain(self, value: float) -> None:
        # The gain is gain_offset + weight.
        super().set_gain(value)
        if self.weight is not None:
            with torch.no_grad():
                self.weight.add_(self.gain_offset * (value - 1))

    @property
    def is_standard(self) -> bool:
        """Whether torch and the fused kernels compute this variant."""
        return self.k == self.dim and self.eps_mode == "inside"

    def kernel_params(self) -> NormParams | None:
        gain = (
            self.weight + self.gain_offset
            if self.weight is not None and self.gain_offset
            else self.weight
        )
        return NormParams(True, gain, self.bias, self.eps) if self.is_standard else None

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        weight = None if self.weight is None else self.weight.to(x.dtype) + self.gain_offset
        if self.is_standard:
            y = rms_norm(x, weight, self.eps)
        else:
            y = x / root_mean_square(x[..., : self.k], eps=self.eps, eps_mode=self.eps_mode)
            y = y if weight is None else y * weight
        return y if self.bias is None else y + self.bias
