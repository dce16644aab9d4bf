"""Cells: rows of a table as the tensors that a model reads."""

from typing import NamedTuple

import torch
from torch import Tensor

ABSENT, RARE, KNOWN = 0, 1, 2
"""Codes of a category: no value; one that training met too seldom, or never; the first of those
that it knows."""
PADDING, NO_TEXT, WORD = 0, 1, 2
"""The same for words: nothing; the mark of an absent text; the first word that is known."""


class Cells(NamedTuple):
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

    def rows(self, index: Tensor | slice) -> "Cells":
        """Some of the rows."""
        return Cells(*(part[index] for part in self))

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "Cells":
        """On a device, numbers in a type."""
        numbers, *others = (part.to(device) for part in self)
        return Cells(numbers.to(dtype), *others)

    @property
    def height(self) -> int:
        """Rows."""
        return len(self.numbers)

    def replaced(self, other: "Cells", where: Tensor) -> "Cells":
        """With the cells of other rows at some places. where: (B, features), True there."""
        n, c = self.numbers.shape[1], self.codes.shape[1]
        number, code, word = where[:, :n], where[:, n : n + c], where[:, n + c :]
        return Cells(
            torch.where(number, other.numbers, self.numbers),
            torch.where(number, other.absent, self.absent),
            torch.where(code, other.codes, self.codes),
            torch.where(word[..., None], other.words, self.words),
        )

    def hidden(self, where: Tensor) -> "Cells":
        """With absent cells at some places. where: (B, features), True there."""
        words = torch.full_like(self.words, PADDING)
        words[..., :1] = NO_TEXT
        nothing = Cells(
            torch.zeros_like(self.numbers),
            torch.ones_like(self.absent),
            torch.full_like(self.codes, ABSENT),
            words,
        )
        return self.replaced(nothing, where)

    def unlike(self, other: "Cells") -> Tensor:
        """Which cells differ from those of other rows, (B, features)."""
        number = (self.numbers != other.numbers) | (self.absent != other.absent)
        words = (self.words != other.words).any(-1)
        return torch.cat((number, self.codes != other.codes, words), 1)
