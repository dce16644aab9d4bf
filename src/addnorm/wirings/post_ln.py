"""Post-LN: the original Add & Norm."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.plan import Plan
from addnorm.wirings.base import State, register
from addnorm.wirings.post_norm_base import PostNorm


@register(
    Card(
        name="post_ln",
        title="Post-LN",
        group="classic",
        formula="x <- N(x + f(x))",
        paper="Vaswani et al., Attention Is All You Need, 2017, arXiv 1706.03762",
        summary=(
            "The original. Strong when it trains; deep stacks need warm-up or do not train at all."
        ),
        reduces_to=(("post_ln", "post_ln(final_norm=True)"),),
    )
)
class PostLN(PostNorm):
    """Normalize after the add.

    x_next = N(x + f(x))

    x, f(x): (..., dim) the stream and the branch
    N: one norm per site; no final norm, the last site's is the last

    Vaswani et al. 2017, section 3.1. Pitfall: torch.nn.Transformer appends a final norm to Post-LN
    nevertheless, which doubles the last one (pytorch issue 24930). `final_norm=True` reproduces it
    for weights from there. At initialization it changes nothing: applied twice, LayerNorm with gain
    1 and bias 0 equals LayerNorm applied once.
    """

    # Trains poorly without or with a short warm-up: 8, 31 and 34 BLEU with 1, 500 and 4000 steps
    # (Xiong et al. 2020, arXiv 2002.04745). The default is long because most runs are short.
    schedule = "inverse_sqrt(warmup=0.2)"

    def __init__(self, plan: Plan, *, final_norm: bool = False) -> None:
        super().__init__(plan)
        self.norms = self.make_site_norms()
        self.final_norm = self.make_norm() if final_norm else None

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])
