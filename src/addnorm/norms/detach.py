"""DetachNorm: LayerNorm-simple whose statistics are constants for the backward pass."""

from typing import Literal

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.registry import NonNegative
from addnorm.norms.base import Norm, register
from addnorm.norms.statistics import EpsMode, VarMode, standard_deviation


@register(
    Card(
        name="detach",
        title="DetachNorm",
        group="variants",
        formula="y = (x - sg(mean(x))) / sg(sqrt(var(x) + eps))",
        paper=(
            "Xu et al., Understanding and Improving Layer Normalization, 2019, arXiv 1911.07013"
        ),
        summary=(
            "An ablation, not a norm to train with: same forward as LayerNorm-simple, no gradient "
            "through the statistics named by `which`."
        ),
        reduces_to=tuple(
            (f"detach(which={which})", "layer(affine=False)") for which in ("mean", "std", "both")
        ),
    )
)
class DetachNorm(Norm):
    """Center and scale each token by statistics that carry no gradient.

    y = (x - m) / s      m = mean(x), s = sqrt(var(x) + eps), `which` of them behind a stop-gradient

    x, y: (..., dim)
    which: "mean", "std" or "both"

    Xu et al. 2019, section 3. With both detached the gradient is g / s, and the two projections
    of LayerNorm's backward pass are absent.
    """

    gain = None

    # NOTE[DIFF]: the released code divides by the unbiased deviation plus 1e-5:
    # detach(var=unbiased, eps_mode=outside). The default is the paper's deviation, with torch's eps
    # inside the root.
    def __init__(
        self,
        dim: int,
        *,
        which: Literal["mean", "std", "both"] = "both",
        eps: NonNegative = 1e-5,
        var: VarMode = "biased",
        eps_mode: EpsMode = "inside",
    ) -> None:
        super().__init__(dim)
        self.which, self.eps, self.var, self.eps_mode = which, eps, var, eps_mode

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        spread = standard_deviation(x - mean, var=self.var, eps=self.eps, eps_mode=self.eps_mode)
        if self.which in ("mean", "both"):
            mean = mean.detach()
        if self.which in ("std", "both"):
            spread = spread.detach()
        return (x - mean) / spread
