"""adaLN: LayerNorm whose gain and bias are computed from a condition."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import NonNegative, Width
from addnorm.kernels.inputs import check_tensor
from addnorm.norms.base import Norm, register


@register(
    Card(
        name="ada_ln",
        title="adaLN",
        group="conditional",
        formula="y = LN(x) * (1 + scale) + shift, (shift, scale) = weight @ silu(cond) + bias",
        paper=(
            "Peebles and Xie, Scalable Diffusion Models with Transformers, 2022, arXiv 2212.09748"
        ),
        summary=(
            "Lets a class, a time or a language steer every layer; starts as LayerNorm without "
            "gain and bias, whatever the condition."
        ),
        needs=("cond",),
        reduces_to=(("ada_ln", "layer(eps=1e-06, affine=False)"),),
        undefined="A missing condition: taken as zero, so that only the bias applies.",
    )
)
class AdaLN(Norm):
    """Normalize each token and modulate it by the condition.

    y = LN(x) * (1 + scale) + shift
    (shift, scale) = weight @ silu(cond) + bias
    LN(x) = (x - mean(x)) / sqrt(var(x) + eps)

    x, y: (..., dim)
    cond: (..., cond_dim), its leading axes the first of x: (B, cond_dim) per sequence,
        (B, L, cond_dim) per token
    weight: (2 * dim, cond_dim), starts at 0; cond_dim is dim unless given
    bias: (2 * dim), starts at 0, shift before scale

    Peebles and Xie 2022, section 3.2. Pitfall: causal only as far as the condition is.
    """

    gain = "bias"

    # NOTE[DIFF]: adaLN-Zero's gates multiply the branch, which belongs to the wiring; this norm has
    # only its modulation, starting at zero.
    def __init__(self, dim: int, *, cond_dim: Width | None = None, eps: NonNegative = 1e-6) -> None:
        super().__init__(dim)
        self.cond_dim, self.eps = dim if cond_dim is None else cond_dim, eps
        self.weight = nn.Parameter(torch.empty(2 * dim, self.cond_dim))
        self.bias = nn.Parameter(torch.empty(2 * dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def set_gain(self, value: float) -> None:
        # The gain is 1 + scale, so its initial value is stored in the bias.
        super().set_gain(value)
        with torch.no_grad():
            self.bias[self.dim :].add_(value - 1)

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        cond = x.new_zeros(self.cond_dim) if cond is None else self._broadcast_condition(cond, x)
        modulation = F.linear(F.silu(cond), self.weight.to(x.dtype), self.bias.to(x.dtype))
        shift, scale = modulation.chunk(2, dim=-1)
        return F.layer_norm(x, (self.dim,), eps=self.eps) * (1 + scale) + shift

    def _broadcast_condition(self, cond: Tensor, x: Tensor) -> Tensor:
        """Cast the condition to the dtype of x and insert axes of size 1 before its last axis."""
        check_tensor("cond", cond, f"a tensor of shape (..., {self.cond_dim})")
        leading = cond.shape[:-1]
        if (
            not cond.is_floating_point()
            or cond.ndim == 0
            or cond.shape[-1] != self.cond_dim
            or leading != x.shape[:-1][: len(leading)]
        ):
            raise UserError(
                f"AdaLN(cond_dim={self.cond_dim}): expected a floating-point condition of shape "
                f"(..., {self.cond_dim}) whose leading axes are the first of x, {tuple(x.shape)}, "
                f"got {tuple(cond.shape)} of {cond.dtype}"
            )
        inserted = (1,) * (x.ndim - cond.ndim)
        return cond.to(x.dtype).reshape(*leading, *inserted, self.cond_dim)
