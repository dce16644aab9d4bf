"""AdaNorm: LayerNorm-simple with a factor that depends on the value and carries no gradient."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.registry import NonNegative, Positive
from addnorm.norms.base import Norm, register
from addnorm.norms.statistics import EpsMode, VarMode, standard_deviation


@register(
    Card(
        name="ada",
        title="AdaNorm",
        group="variants",
        formula="z = scale * (1 - k * sg(y)) * y, y = (x - mean(x)) / sqrt(var(x) + eps)",
        paper=(
            "Xu et al., Understanding and Improving Layer Normalization, 2019, arXiv 1911.07013"
        ),
        summary=(
            "Gain and bias, which over-fit, replaced by a fixed function of the normalized value."
        ),
        reduces_to=(("ada(k=0.0)", "layer(affine=False)"),),
    )
)
class AdaNorm(Norm):
    """Scale each normalized value by a factor that falls with the value itself.

    z = scale * (1 - k * sg(y)) * y
    y = (x - mean(x)) / sqrt(var(x) + eps)

    x, z: (..., dim)
    scale: scalar, fixed; C in the paper, chosen per task
    k: scalar, fixed
    sg: stop-gradient: the factor scales gradients but passes none

    Xu et al. 2019, section 4. Pitfall: z has mean -scale * k, not 0.
    """

    gain = None

    # NOTE[DIFF]: C is a task's choice; 1 is the README's, 2 the released code's default.
    # NOTE[DIFF]: the released code divides by the unbiased deviation plus 1e-5:
    # ada(var=unbiased, eps_mode=outside). The default is the paper's deviation, with torch's eps
    # inside the root.
    # NOTE[DIFF]: the released code puts AdaNorm only at the end of encoder and decoder, the other
    # norms stay LayerNorm; here, as in the paper, it replaces every norm of the wiring.
    def __init__(
        self,
        dim: int,
        *,
        scale: Positive = 1.0,
        k: NonNegative = 0.1,
        eps: NonNegative = 1e-5,
        var: VarMode = "biased",
        eps_mode: EpsMode = "inside",
    ) -> None:
        super().__init__(dim)
        self.scale, self.k, self.eps, self.var, self.eps_mode = scale, k, eps, var, eps_mode

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        y = centered / standard_deviation(
            centered, var=self.var, eps=self.eps, eps_mode=self.eps_mode
        )
        return self.scale * (1 - self.k * y.detach()) * y
