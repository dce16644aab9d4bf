"""GroupNorm on tokens: LayerNorm inside each of a few groups of features."""

import torch.nn.functional as F
from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Count, NonNegative
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import register


@register(
    Card(
        name="group",
        title="GroupNorm",
        group="classic",
        formula="y = weight * (x - mean_group(x)) / sqrt(var_group(x) + eps) + bias",
        paper="Wu and He, Group Normalization, 2018, arXiv 1803.08494",
        summary=(
            "No group of features can dominate another; one group per attention head is natural."
        ),
        reduces_to=(("group(groups=1)", "layer"),),
        undefined="Number of groups: by default at most 8, with at least four features each.",
    )
)
class GroupNorm(AffineNorm):
    """Center and scale each group of a token's features by its own statistics.

    y = weight * (x - mean_group(x)) / sqrt(var_group(x) + eps) + bias

    x, y: (..., dim), group i holds features i * dim / groups to (i + 1) * dim / groups - 1
    weight: (dim), starts at 1; absent with affine=False
    bias: (dim), starts at 0; absent with affine=False
    groups: a divisor of dim; None takes the largest up to 8 that leaves four features to a group

    Wu and He 2018, eq. 7. Pitfall: a group of two features keeps nothing but their order.
    """

    # NOTE[DIFF]: Wu and He average over the positions of an image as well, as torch.nn.GroupNorm
    # does on (B, dim, L). A token here is an image of one pixel, free of padding and of the future.
    def __init__(
        self,
        dim: int,
        *,
        groups: Count | None = None,
        eps: NonNegative = 1e-5,
        affine: bool = True,
    ) -> None:
        super().__init__(dim, affine=affine, bias=True)
        self.groups, self.eps = _default_groups(dim) if groups is None else groups, eps
        if dim % self.groups:
            fitting = ", ".join(str(n) for n in range(1, dim // 2 + 1) if dim % n == 0)
            raise UserError(
                f"group(groups={groups}) does not divide dim {dim}; choose one of {fitting or 1}"
            )
        if self.groups == dim > 1:
            raise UserError(
                f"group(groups={groups}) leaves one feature to a group at dim {dim}, and a feature "
                "minus its own mean is 0; choose fewer groups"
            )
        self.reset_parameters()

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        width = self.dim // self.groups
        grouped = x.reshape(*x.shape[:-1], self.groups, width)
        return self.apply_affine(F.layer_norm(grouped, (width,), eps=self.eps).flatten(-2))


def _default_groups(dim: int) -> int:
    return max(n for n in range(1, 9) if n == 1 or (dim % n == 0 and dim // n >= 4))
