"""DeepNorm: Post-LN with a scaled skip and smaller initial weights."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Positive
from addnorm.wirings.base import register
from addnorm.wirings.post_norm_base import PostNorm


@register(
    Card(
        name="deepnorm",
        title="DeepNorm",
        formula="x <- N(alpha * x + f(x)), value side of f starts times beta",
        paper="Wang et al., DeepNet: Scaling Transformers to 1,000 Layers, 2022, arXiv 2203.00555",
        summary="Bounds the update of a Post-LN stack by constants computed from its depth.",
        reduces_to=(("deepnorm(alpha=1.0, beta=1.0)", "post_ln"),),
    )
)
class DeepNorm(PostNorm):
    """Post-LN with a constant on the skip and one on the start weights.

    x_next = N(alpha * x + f(x))

    x, f(x): (..., dim) the stream and the branch
    alpha: constant: K ** (1 / 4) for a stack of K sub-layers; 0.81 (N^4 M) ** (1 / 16) for the
        encoder of a pair with N and M layers
    beta: start factor of value, out, ffn_in, ffn_out: (4 K) ** (-1 / 4); 0.87 (N^4 M) ** (-1 / 16)
    query, key: start unscaled
    N: one norm per site, no final norm

    Wang et al. 2022, figure 2: K = 2 N or 2 M for a single encoder or decoder, 3 M for a decoder
    with cross-attention. Weights are drawn Xavier-normal. Pitfall: alpha belongs on the skip.
    """

    # The same as Admin, its baseline in Transformer-Clinic.
    schedule = "inverse_sqrt(warmup=0.1)"
    scheme = "xavier_normal"

    # NOTE[DIFF]: the paper counts layers of two or three sub-layers; counted in sub-layers, its
    # three rules for single stacks are one, which also holds for layers of other sizes.
    # NOTE[DIFF]: torchscale multiplies default weights and biases by beta; here as in the paper.
    def __init__(
        self, plan: Plan, *, alpha: Positive | None = None, beta: Positive | None = None
    ) -> None:
        super().__init__(plan)
        base = plan.at_base
        if plan.role == "encoder":
            size = (base.depth**4 * (base.other_depth or 1)) ** (1 / 16)
            rule = 0.81 * size, 0.87 / size
        else:
            rule = len(base.sites) ** 0.25, (4 * len(base.sites)) ** -0.25
        self.alpha = rule[0] if alpha is None else alpha
        self.beta = rule[1] if beta is None else beta
        self.norms = self.make_site_norms()

    def scale(self, site: Site) -> float | Tensor | None:
        return self.alpha

    def gain(self, role: str, site: Site | None = None) -> float:
        # Beta scales all weights but those of queries and keys.
        return self.beta if role in ("value", "out", "ffn_in", "ffn_out") else 1.0
