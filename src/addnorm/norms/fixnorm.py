"""FixNorm: embeddings of one fixed length, so that frequent words are not simply longer."""

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.registry import Positive
from addnorm.norms.base import Norm, register
from addnorm.norms.statistics import l2_normalize


@register(
    Card(
        name="fixnorm",
        title="FixNorm",
        group="classic",
        formula="y = length * x / |x|",
        paper=(
            "Nguyen and Chiang, Improving Lexical Choice in Neural Machine Translation, 2018, "
            "arXiv 1710.01329"
        ),
        summary=(
            "For the rows of embedding tables: rare and frequent words differ in direction only, "
            "and logits are bounded by the length of the hidden state."
        ),
        reduces_to=(("fixnorm", "l2"),),
    )
)
class FixNorm(Norm):
    """Scale each row of a table to a fixed length.

    y = length * x / max(|x|, 1e-12)

    x, y: (..., dim), rows of an embedding table, normalized in every forward pass
    length: scalar, fixed

    Nguyen and Chiang 2018, as used by Nguyen and Salazar 2019, arXiv 1910.05895. The
    gradient of a row is orthogonal to it, so the rows of the raw table never shrink.
    """

    gain = None

    # NOTE[DIFF]: Nguyen and Chiang fix the length of the decoder's vectors as well and choose it on
    # held-out data; here only rows are normalized, to length 1 as in Nguyen and Salazar. For the
    # decoder's vectors use a second fixnorm, or scale.
    def __init__(self, dim: int, *, length: Positive = 1.0) -> None:
        super().__init__(dim)
        self.length = length

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        return self.length * l2_normalize(x)
