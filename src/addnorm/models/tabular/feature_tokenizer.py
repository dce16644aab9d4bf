"""Tokens: a vector for every cell of a row."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.models.tabular.numeric_embeddings import init_uniform_, make_numeric_embedding
from addnorm.models.tabular.table_batch import PADDING, TableBatch


class FeatureTokenizer(nn.Module):
    """Every cell as a vector, numbers first, then categories, then texts; before them, if wanted,
    one that stands for the row.

    t_0 = cls
    t_j = E_j(x_j) where there is a number, a_j where it is absent
    t_j = table[code_j] + b_j; absence and rarity have rows of their own in the table
    t_j = sum of table[word] / sqrt(words) + b_j

    cls: (dim)
    E: a numeric embedding
    a: (numbers, dim)
    table: (all codes, dim), the rows of all columns below one another
    b: (categories + texts, dim)

    All start uniform in +-1 / sqrt(dim). Rows of categories that training never meets start at 0:
    such a cell says no more than its column's bias.

    Gorishniy et al. 2021, section 3.3; a and texts are ours.
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
        """Small and uniform; categories that were too rare to be told apart at 0."""
        if self.numeric is not None:
            self.numeric.reset_parameters()
        for weight in (self.cls, self.absent, self.table, self.bias):
            if weight is not None:
                init_uniform_(weight, self.dim)
        if self.table is not None and not self.table.is_meta:
            with torch.no_grad():
                self.table[self.offsets[: self.categories] + 1] = 0

    def fit_bins(self, cells: TableBatch, weights: Tensor) -> None:
        """What the numeric embedding takes from training rows."""
        if self.numeric is not None:
            self.numeric.fit_bins(cells.numbers, absent=cells.absent, weights=weights)

    def forward(self, cells: TableBatch) -> Tensor:
        """(B, features, dim), and one more in front where there is a `cls`."""
        made = [] if self.cls is None else [self.cls.expand(cells.num_rows, 1, -1)]
        if self.numeric is not None and self.absent is not None:
            vectors = self.numeric(cells.numbers)
            made.append(torch.where(cells.absent[..., None], self.absent, vectors))
        if self.table is not None and self.bias is not None:
            known, bias = self.categories, self.bias
            if known:
                codes = cells.codes + self.offsets[:known]
                made.append(F.embedding(codes, self.table) + bias[:known])
            if known < len(bias):
                made.append(self._embed_texts(cells.words) + bias[known:])
        return torch.cat(made, 1)

    def _embed_texts(self, words: Tensor) -> Tensor:
        assert self.table is not None
        real = (words != PADDING)[..., None].to(self.table.dtype)
        vectors = F.embedding(words + self.offsets[self.categories :, None], self.table)
        return (vectors * real).sum(2) / real.sum(2).clamp_min(1).sqrt()
