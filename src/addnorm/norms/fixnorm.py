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
        formula="y = length * x / |x|",
        paper=(
            "Nguyen and Chiang, Improving Lexical Choice in Neural Machine Translation, 2018, "
            "arXiv 1710.01329"
        ),
        summary=(
            "For the rows of embedding tables: rare words compete by direction alone, and logits "
            "are bounded by the length of what meets them."
        ),
        reduces_to=(("fixnorm", "l2"),),
    )
)
class FixNorm(Norm):
    """Bring each row of a table to a fixed length.

    y = length * x / max(|x|, 1e-12)

    x, y: (..., dim), rows of an embedding table, normalized anew at every forward
    length: scalar, fixed

    Nguyen and Chiang 2018, as used by Nguyen and Salazar 2019, arXiv 1910.05895. The
    gradient of a row stands at right angles to it, so rows of the raw table only ever grow.
    """

    gain = None

    # NOTE[DIFF]: Nguyen and Chiang fix the length of the decoder's vectors as well and choose it on
    # held-out data; here rows alone, of length 1 as in Nguyen and Salazar. For the decoder's
    # vectors choose a second fixnorm, or scale.
    def __init__(self, dim: int, *, length: Positive = 1.0) -> None:
        super().__init__(dim)
        self.length = length

    def normalize(self, x: Tensor, mask: Tensor | None, cond: Tensor | None) -> Tensor:
        return self.length * l2_normalize(x)
