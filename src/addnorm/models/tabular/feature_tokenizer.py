"""Feature tokenizer: an embedding for every cell of a row."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.models.tabular.numeric_embeddings import init_uniform_, make_numeric_embedding
from addnorm.models.tabular.table_batch import PADDING, TableBatch


class FeatureTokenizer(nn.Module):
    """Embedding of every cell: numbers, then categories, then texts, after an optional row token.

    t_0 = cls                                       row token
    t_j = E_j(x_j), or a_j if x_j is missing        number
    t_j = table[code_j] + b_j                       category
    t_j = sum of table[word] / sqrt(words) + b_j    text

    cls: (dim)
    E: numeric embedding
    a: (numbers, dim)
    table: (all codes, dim), the codes of all columns; ABSENT and RARE have rows of their own
    b: (categories + texts, dim)

    All start uniform in +-1 / sqrt(dim), except for the rows of RARE, which start at 0: an unseen
    category is then represented by the bias of its column alone.

    Gorishniy et al. 2021, section 3.3, extended by a and texts.
    """

    offsets: Tensor

    def __init__(
        self,
        dim: int,
        *,
        numbers: int,
        categories: tuple[int, ...],
        texts: tuple[int, ...],
        numeric: str = "linear",
        cls: bool = True,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.cls = nn.Parameter(torch.empty(dim)) if cls else None
        self.numeric = make_numeric_embedding(numeric, numbers, dim) if numbers else None
        self.absent = nn.Parameter(torch.empty(numbers, dim)) if numbers else None
        sizes = torch.tensor([0, *categories, *texts], dtype=torch.int64)
        self.register_buffer("offsets", sizes.cumsum(0)[:-1], persistent=False)
        coded = len(categories) + len(texts)
        self.categories = len(categories)
        self.table = nn.Parameter(torch.empty(sum((*categories, *texts)), dim)) if coded else None
        self.bias = nn.Parameter(torch.empty(coded, dim)) if coded else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize all parameters as described for the class."""
        if self.numeric is not None:
            self.numeric.reset_parameters()
        for weight in (self.cls, self.absent, self.table, self.bias):
            if weight is not None:
                init_uniform_(weight, self.dim)
        if self.table is not None and not self.table.is_meta:
            with torch.no_grad():
                self.table[self.offsets[: self.categories] + 1] = 0

    def fit_bins(self, cells: TableBatch, weights: Tensor) -> None:
        """Set the bins of the numeric embedding to quantiles of training rows."""
        if self.numeric is not None:
            self.numeric.fit_bins(cells.numbers, absent=cells.absent, weights=weights)

    def forward(self, cells: TableBatch) -> Tensor:
        """Embed rows; return (B, features, dim), or (B, 1 + features, dim) with a row token."""
        tokens = [] if self.cls is None else [self.cls.expand(cells.num_rows, 1, -1)]
        if self.numeric is not None and self.absent is not None:
            vectors = self.numeric(cells.numbers)
            tokens.append(torch.where(cells.absent[..., None], self.absent, vectors))
        if self.table is not None and self.bias is not None:
            count, bias = self.categories, self.bias
            if count:
                codes = cells.codes + self.offsets[:count]
                tokens.append(F.embedding(codes, self.table) + bias[:count])
            if count < len(bias):
                tokens.append(self._embed_texts(cells.words) + bias[count:])
        return torch.cat(tokens, 1)

    def _embed_texts(self, words: Tensor) -> Tensor:
        assert self.table is not None
        is_word = (words != PADDING)[..., None].to(self.table.dtype)
        vectors = F.embedding(words + self.offsets[self.categories :, None], self.table)
        return (vectors * is_word).sum(2) / is_word.sum(2).clamp_min(1).sqrt()
