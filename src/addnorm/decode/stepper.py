"""Steppers: incremental decoding of a batch, with one interface for all models."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, PAD, START, UNKNOWN
from addnorm.models import LanguageModel, Model, Seq2Seq


@dataclass(frozen=True)
class Sentence:
    """A sentence to decode.

    prefix: token ids that it begins with, START first; the prompt of a language model
    limit: upper bound of new tokens, the end token included
    source: token ids of the source, END last; empty for a language model
    number: index in the input, which seeds its samples
    """

    prefix: tuple[int, ...]
    limit: int
    source: tuple[int, ...] = ()
    number: int = 0

    def __post_init__(self) -> None:
        if not self.prefix:
            raise UserError("prefix: expected at least one token, got none")
        if self.limit < 1:
            raise UserError(f"limit: expected a whole number from 1, got {self.limit}")

    @property
    def size(self) -> int:
        """Approximate number of tokens in a batch."""
        return len(self.prefix) + (len(self.source) or self.limit)


class DecodingCache(Protocol):
    """What a stepper keeps per row: a `KVCache`, or the tensors of an exported model."""

    def reorder(self, index: Tensor) -> None:
        """Replace row i by row index[i]; rows may be dropped or repeated."""

    def expand_beams(self, size: int) -> None:
        """Repeat each row `size` times."""

    def reorder_beams(self, parents: Tensor) -> None:
        """Let beam i of group b continue from beam parents[b, i]."""

    def select_groups(self, groups: Tensor) -> None:
        """Keep the groups of beams with the given indices."""


class Stepper(ABC):
    """A batch of hypotheses, one per row, that grow by one token per step.

    end: token that ends a text
    forbidden_tokens: token ids that are never generated
    """

    def __init__(
        self, device: torch.device, cache: DecodingCache, sentences: Sequence[Sentence], end: int
    ) -> None:
        self.end = end
        self.forbidden_tokens = [token for token in (PAD, START, END, UNKNOWN) if token != end]
        self.device = device
        self._cache = cache
        self._prefixes = [sentence.prefix for sentence in sentences]

    def start(self) -> Tensor:
        """Read the prefixes; return the logits of the next token, (sentences, vocab)."""
        return self._logits(*pad_tokens(self._prefixes, self.device, pad_left=True))

    def step(self, tokens: Tensor) -> Tensor:
        """Append a token to each row; return the logits of the next one, (rows, vocab).

        Args:
            tokens: (rows) token ids
        """
        return self._logits(tokens[:, None], None)

    def reorder(self, index: Tensor) -> None:
        """Replace row i by row index[i]; rows may be dropped or repeated."""
        self._cache.reorder(index)

    def expand_beams(self, beam: int) -> None:
        """Repeat each row `beam` times."""
        self._cache.expand_beams(beam)

    def reorder_beams(self, parents: Tensor) -> None:
        """Replace hypothesis i of each sentence s by hypothesis parents[s, i]."""
        self._cache.reorder_beams(parents)

    def select_sentences(self, sentences: Tensor) -> None:
        """Keep the hypotheses of some sentences, given by their indices, (S)."""
        self._cache.select_groups(sentences)

    @abstractmethod
    def _logits(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits after the last token, (rows, vocab), of ids and mask, (rows, L)."""


class DecoderStepper(Stepper):
    """Stepper of a decoder-only model."""

    def __init__(self, model: LanguageModel, sentences: Sequence[Sentence], end: int) -> None:
        self.model, self.cache = model, model.new_cache()
        super().__init__(next(model.parameters()).device, self.cache, sentences, end)

    def _logits(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        h = self.model.hidden(ids, mask=mask, cache=self.cache)[:, -1:]
        return self.model.head(h, self.model.embed)[:, 0]


class Seq2SeqStepper(Stepper):
    """Stepper of an encoder-decoder model; the encoder runs once."""

    def __init__(self, model: Seq2Seq, sentences: Sequence[Sentence], end: int) -> None:
        self.model, self.cache = model, model.new_cache()
        super().__init__(next(model.parameters()).device, self.cache, sentences, end)
        source, self._mask = pad_sources(sentences, self.device)
        self._memory = model.encode(source, source_mask=self._mask)

    def _logits(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        memory, memory_mask = self._memory, self._mask
        if self.cache.length:  # keys and values of the memory are cached: only its shape matters
            memory, memory_mask = memory[:1].expand(len(ids), -1, -1), None
        h = self.model.hidden(
            ids, memory, source_mask=memory_mask, target_mask=mask, cache=self.cache
        )
        return self.model.head(h[:, -1:], self.model.embed)[:, 0]


def make_stepper(model: Model, sentences: Sequence[Sentence], end: int = END) -> Stepper:
    """Return the stepper of a model."""
    if isinstance(model, Seq2Seq):
        return Seq2SeqStepper(model, sentences, end)
    if isinstance(model, LanguageModel):
        return DecoderStepper(model, sentences, end)
    raise UserError(f"model: expected a Seq2Seq or LanguageModel, got a {type(model).__name__}")


def pad_sources(
    sentences: Sequence[Sentence], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Return the padded sources of sentences and their mask; see `pad_tokens`."""
    sources = [sentence.source for sentence in sentences]
    if not all(sources):
        raise UserError("source: expected at least the end token, got an empty one")
    return pad_tokens(sources, device)


def pad_tokens(
    rows: Sequence[Sequence[int]], device: torch.device, *, pad_left: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return padded token ids and their mask, (B, L) each; the mask is None without padding."""
    longest = max(map(len, rows))
    padded = [
        [PAD] * (longest - len(row)) + list(row)
        if pad_left
        else [*row, *[PAD] * (longest - len(row))]
        for row in rows
    ]
    ids = torch.tensor(padded, device=device)
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    if bool((lengths == longest).all()):
        return ids, None
    position = torch.arange(longest, device=device)
    return ids, position >= longest - lengths if pad_left else position < lengths
