"""InstanceNorm: each feature normalized over the tokens of its own sentence."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import NonNegative
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import register
from addnorm.norms.statistics import mask_padding, token_mean


@register(
    Card(
        name="instance",
        title="InstanceNorm",
        group="batch",
        formula="y = weight * (x - mean_L(x)) / sqrt(var_L(x) + eps) + bias",
        paper=(
            "Ulyanov, Vedaldi and Lempitsky, Instance Normalization: The Missing Ingredient for "
            "Fast Stylization, 2016, arXiv 1607.08022"
        ),
        summary="Removes the mean over the tokens of a sentence; not for causal stacks.",
        needs=("mask",),
    )
)
class InstanceNorm(AffineNorm):
    """Center and scale each feature over the valid tokens of a sentence.

    y = weight * (x - mean_L(x)) / sqrt(var_L(x) + eps) + bias      0 at padding

    x, y: (..., L, dim)
    mean_L, var_L: (..., 1, dim), over the valid tokens of each sentence, var biased
    weight: (dim), starts at 1; absent with affine=False
    bias: (dim), starts at 0; absent with affine=False

    Ulyanov, Vedaldi and Lempitsky 2016. A sentence of one token becomes the bias. Pitfall:
    every token sees the later ones through the mean.
    """

    causal = False

    # NOTE[DIFF]: the paper normalizes images and has no padding; here padding is left out of the
    # statistics and comes out as 0.
    # NOTE[DIFF]: gain and bias as in Huang and Belongie 2017; torch.nn.InstanceNorm1d has none
    # by default.
    def __init__(self, dim: int, *, eps: NonNegative = 1e-5, affine: bool = True) -> None:
        super().__init__(dim, affine=affine, bias=True)
        self.eps = eps
        self.reset_parameters()

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        if x.ndim < 2:
            raise UserError(
                f"InstanceNorm: expected a sequence of tokens, (..., L, {self.dim}), got "
                f"{tuple(x.shape)}"
            )
        x = mask_padding(x, mask)
        centered = mask_padding(x - token_mean(x, mask), mask)
        var = token_mean(centered.square(), mask)
        return mask_padding(self.apply_affine(centered / (var + self.eps).sqrt()), mask)
