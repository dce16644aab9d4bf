"""LayerNorm on its way out: its deviation becomes a constant, one site after the other."""

import torch
from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.registry import NonNegative
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import register

MOMENTUM = 0.9


@register(
    Card(
        name="constant_std",
        title="LayerNorm with a constant deviation",
        formula="y = weight * (x - mean(x)) / s + bias, s = std(x), or a constant once removed",
        paper=(
            "Heimersheim, You can remove GPT2's LayerNorm by fine-tuning, 2024, arXiv 2409.13710"
        ),
        summary=(
            "LayerNorm until it is removed in fine-tuning; then an affine map, which folds away."
        ),
        reduces_to=(("constant_std", "layer"),),
    )
)
class ConstantStd(AffineNorm):
    """Center each token, and divide by its deviation or, once removed, by a constant.

    y = weight * (x - mean(x)) / s + bias
    s = sqrt(var(x) + eps), or `deviation` if `removed`

    With center=False, for models with RMSNorm, the mean stays: y = weight * x / s + bias, with the
    root mean square in place of the deviation.

    x, y: (..., dim)
    weight: (dim), starts at 1; absent with affine=False
    bias: (dim), starts at 0; absent with affine=False
    deviation: scalar, buffer, starts at 0; running mean of sqrt(var(x) + eps) in training
    removed: scalar, buffer, starts at 0; whether the deviation is constant
    place: scalar, buffer, starts at 0; number in the order of the forward pass, if known

    Heimersheim 2024, section 3; running mean: Baroni et al., Transformers Don't Need LayerNorm at
    Inference Time, 2025, arXiv 2507.02559. `addnorm.rewiring.removal` removes norms on a schedule.
    """

    # NOTE[DIFF]: the released code keeps separate deviations of the first position and of
    # end-of-text tokens, which are far larger in GPT-2; here all tokens share one.
    def __init__(
        self, dim: int, *, eps: NonNegative = 1e-5, affine: bool = True, center: bool = True
    ) -> None:
        super().__init__(dim, affine=affine, bias=affine)
        self.eps, self.center = eps, center
        self.deviation: Tensor
        self.removed: Tensor
        self.place: Tensor
        self.register_buffer("deviation", torch.empty(()))
        self.register_buffer("removed", torch.empty((), dtype=torch.bool))
        self.register_buffer("place", torch.empty((), dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.deviation.zero_()
        self.removed.zero_()
        self.place.zero_()

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        centered = x - x.mean(-1, keepdim=True) if self.center else x
        own = (centered.square().mean(-1, keepdim=True) + self.eps).sqrt()
        if self.training:
            self._update(own, mask)
        s = torch.where(self.removed, self.deviation.to(own.dtype), own)
        return self.apply_affine(centered / s)

    @torch.no_grad()
    def _update(self, own: Tensor, mask: Tensor | None) -> None:
        """Update the running mean, unless the norm is removed or there is no token."""
        valid = torch.ones_like(own) if mask is None else mask[..., None].to(own.dtype)
        count = valid.sum()
        mean = ((own * valid).sum() / count.clamp(min=1)).to(self.deviation.dtype)
        running = MOMENTUM * self.deviation + (1 - MOMENTUM) * mean
        value = torch.where(self.deviation == 0, mean, running)
        self.deviation.copy_(torch.where(self.removed | (count == 0), self.deviation, value))

    @torch.no_grad()
    def remove(self) -> None:
        """Divide by the running mean from now on."""
        self.removed.fill_(True)
