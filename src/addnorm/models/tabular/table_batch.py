"""Cells: rows of a table as the tensors that a model reads."""

from typing import NamedTuple

import torch
from torch import Tensor

ABSENT, RARE, FIRST_KNOWN = 0, 1, 2
"""Codes of a category: no value; one that training met too seldom, or never; the first of those
that it knows."""
PADDING, NO_TEXT, FIRST_WORD = 0, 1, 2
"""The same for words: nothing; the mark of an absent text; the first word that is known."""


class TableBatch(NamedTuple):
    """Rows, columns sorted by what they hold.

    A model's features are its numbers, then its categories, then its texts.
    """

    numbers: Tensor
    """(B, numbers), scaled; 0 where absent."""
    absent: Tensor
    """(B, numbers), True where there is no number."""
    codes: Tensor
    """(B, categories), ABSENT, RARE, or a known category's code."""
    words: Tensor
    """(B, texts, slots), codes of words, PADDING behind them."""

    def select_rows(self, index: Tensor | slice) -> "TableBatch":
        """Some of the rows."""
        return TableBatch(*(part[index] for part in self))

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "TableBatch":
        """On a device, numbers in a type."""
        numbers, *others = (part.to(device) for part in self)
        return TableBatch(numbers.to(dtype), *others)

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.numbers)

    def replace_cells(self, other: "TableBatch", mask: Tensor) -> "TableBatch":
        """With the cells of other rows at some places. where: (B, features), True there."""
        n, c = self.numbers.shape[1], self.codes.shape[1]
        number, code, word = mask[:, :n], mask[:, n : n + c], mask[:, n + c :]
        return TableBatch(
            torch.where(number, other.numbers, self.numbers),
            torch.where(number, other.absent, self.absent),
            torch.where(code, other.codes, self.codes),
            torch.where(word[..., None], other.words, self.words),
        )

    def masked(self, mask: Tensor) -> "TableBatch":
        """With absent cells at some places. where: (B, features), True there."""
        words = torch.full_like(self.words, PADDING)
        words[..., :1] = NO_TEXT
        nothing = TableBatch(
            torch.zeros_like(self.numbers),
            torch.ones_like(self.absent),
            torch.full_like(self.codes, ABSENT),
            words,
        )
        return self.replace_cells(nothing, mask)

    def differs_from(self, other: "TableBatch") -> Tensor:
        """Which cells differ from those of other rows, (B, features)."""
        number = (self.numbers != other.numbers) | (self.absent != other.absent)
        words = (self.words != other.words).any(-1)
        return torch.cat((number, self.codes != other.codes, words), 1)
