"""Rows of a table as tensors."""

from typing import NamedTuple

import torch
from torch import Tensor

ABSENT, RARE, FIRST_KNOWN = 0, 1, 2
"""Codes of categories: a missing value, an unseen or rare one, and the first known one."""
PADDING, NO_TEXT, FIRST_WORD = 0, 1, 2
"""Codes of words: padding, a missing text, and the first known word."""


class TableBatch(NamedTuple):
    """Rows with their features grouped by type: numbers, then categories, then texts."""

    numbers: Tensor
    """(B, numbers) scaled numbers; 0 if missing."""
    absent: Tensor
    """(B, numbers) boolean, True at missing numbers."""
    codes: Tensor
    """(B, categories) ABSENT, RARE or the code of a known category."""
    words: Tensor
    """(B, texts, slots) codes of words, then PADDING."""

    def select_rows(self, index: Tensor | slice) -> "TableBatch":
        """Select rows by index or slice."""
        return TableBatch(*(field[index] for field in self))

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "TableBatch":
        """Move to a device, with numbers converted to a dtype."""
        numbers, *others = (field.to(device) for field in self)
        return TableBatch(numbers.to(dtype), *others)

    @property
    def num_rows(self) -> int:
        """Size of the first axis, which all fields share."""
        return self.numbers.shape[0]

    def replace_cells(self, other: "TableBatch", mask: Tensor) -> "TableBatch":
        """Return a copy with the cells of other rows at a mask.

        Args:
            other: rows to take cells from, as many as here
            mask: (B, features) boolean, True at cells to replace
        """
        n, c = self.numbers.shape[1], self.codes.shape[1]
        number, code, word = mask[:, :n], mask[:, n : n + c], mask[:, n + c :]
        return TableBatch(
            torch.where(number, other.numbers, self.numbers),
            torch.where(number, other.absent, self.absent),
            torch.where(code, other.codes, self.codes),
            torch.where(word[..., None], other.words, self.words),
        )

    def masked(self, mask: Tensor) -> "TableBatch":
        """Return a copy with missing cells at a mask, (B, features)."""
        words = torch.full_like(self.words, PADDING)
        words[..., :1] = NO_TEXT
        missing = TableBatch(
            torch.zeros_like(self.numbers),
            torch.ones_like(self.absent),
            torch.full_like(self.codes, ABSENT),
            words,
        )
        return self.replace_cells(missing, mask)

    def differs_from(self, other: "TableBatch") -> Tensor:
        """Return a mask of the cells that differ from those of other rows, (B, features)."""
        number = (self.numbers != other.numbers) | (self.absent != other.absent)
        words = (self.words != other.words).any(-1)
        return torch.cat((number, self.codes != other.codes, words), 1)
