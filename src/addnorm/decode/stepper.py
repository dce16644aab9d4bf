"""Stepper: a batch of texts that grow by a token at a time, whatever model writes them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, PAD, START, UNKNOWN
from addnorm.models import LanguageModel, Model, Seq2Seq
from addnorm.stacks import Decoder, Encoder
from addnorm.sublayers import KVCache
from addnorm.sublayers.positions import LearnedPositions


@dataclass(frozen=True)
class Sentence:
    """One thing to write.

    prefix: tokens it begins with, START first; of a language model, the prompt
    limit: new tokens at most, the end included
    source: tokens of what is to be translated, END last; none for a language model
    number: its place in the input, which its draws follow from
    """

    prefix: tuple[int, ...]
    limit: int
    source: tuple[int, ...] = ()
    number: int = 0

    def __post_init__(self) -> None:
        if not self.prefix:
            raise UserError("a sentence begins with a token at least, got an empty prefix")
        if self.limit < 1:
            raise UserError(f"limit counts new tokens from 1, got {self.limit}")

    @property
    def size(self) -> int:
        """Tokens it takes in a batch, about."""
        return len(self.prefix) + (len(self.source) or self.limit)


class Stepper(ABC):
    """Rows, one hypothesis each: first the prefix of every sentence, then a token at a time.

    end: the token that ends a text
    never: tokens that are not written
    """

    def __init__(
        self, model: Model, cache: KVCache, sentences: Sequence[Sentence], end: int
    ) -> None:
        self.end = end
        self.forbidden_tokens = [token for token in (PAD, START, END, UNKNOWN) if token != end]
        self.device = next(model.parameters()).device
        self.cache = cache
        self._prefixes = [sentence.prefix for sentence in sentences]

    def start(self) -> Tensor:
        """Logits of the token behind each prefix, (sentences, vocab)."""
        return self._logits(*pad_tokens(self._prefixes, self.device, pad_left=True))

    def step(self, tokens: Tensor) -> Tensor:
        """Logits of the next token, (rows, vocab), after one more, (rows)."""
        return self._logits(tokens[:, None], None)

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row index[i] was; rows may leave or be doubled."""
        self.cache.reorder(index)

    def expand_beams(self, beam: int) -> None:
        """Every row becomes so many, next to each other."""
        self.cache.expand_beams(beam)

    def reorder_beams(self, parents: Tensor) -> None:
        """Hypothesis i of a sentence goes on from hypothesis parents[i], (sentences, beam)."""
        self.cache.reorder_beams(parents)

    def select_sentences(self, sentences: Tensor) -> None:
        """The hypotheses of some sentences only, by their numbers."""
        self.cache.select_groups(sentences)

    @abstractmethod
    def _logits(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Of the token behind the last one, (rows, vocab)."""


class DecoderStepper(Stepper):
    """A language model goes on with its prompts."""

    def __init__(self, model: LanguageModel, sentences: Sequence[Sentence], end: int) -> None:
        super().__init__(model, model.new_cache(), sentences, end)
        self.model = model

    def _logits(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        h = self.model.hidden(ids, mask=mask, cache=self.cache)[:, -1:]
        return self.model.head(h, self.model.embed)[:, 0]


class Seq2SeqStepper(Stepper):
    """An encoder reads the sources once, its decoder writes."""

    def __init__(self, model: Seq2Seq, sentences: Sequence[Sentence], end: int) -> None:
        super().__init__(model, model.new_cache(), sentences, end)
        self.model = model
        sources = [sentence.source for sentence in sentences]
        if not all(sources):
            raise UserError("a source has one token at least, its end; got an empty one")
        source, self._mask = pad_tokens(sources, self.device)
        self._memory = model.encode(source, source_mask=self._mask)

    def _logits(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        memory, memory_mask = self._memory, self._mask
        if (
            self.cache.length
        ):  # the cache holds all that was made of it: only its shape is looked at
            memory, memory_mask = memory[:1].expand(len(ids), -1, -1), None
        h = self.model.hidden(
            ids, memory, source_mask=memory_mask, target_mask=mask, cache=self.cache
        )
        return self.model.head(h[:, -1:], self.model.embed)[:, 0]


def make_stepper(model: Model, sentences: Sequence[Sentence], end: int = END) -> Stepper:
    """The stepper for a model."""
    if isinstance(model, Seq2Seq):
        return Seq2SeqStepper(model, sentences, end)
    if isinstance(model, LanguageModel):
        return DecoderStepper(model, sentences, end)
    raise UserError(
        f"a {type(model).__name__} writes no tokens; wanted a Seq2Seq or a LanguageModel"
    )


def pad_tokens(
    rows: Sequence[Sequence[int]], device: torch.device, *, pad_left: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Token numbers and their mask, (B, L) each; no mask where nothing had to be filled up."""
    longest = max(map(len, rows))
    filled = [
        [PAD] * (longest - len(row)) + list(row)
        if pad_left
        else [*row, *[PAD] * (longest - len(row))]
        for row in rows
    ]
    ids = torch.tensor(filled, device=device)
    lengths = torch.tensor([[len(row)] for row in rows], device=device)
    if bool((lengths == longest).all()):
        return ids, None
    place = torch.arange(longest, device=device)
    return ids, place >= longest - lengths if pad_left else place < lengths


def max_positions(stack: Encoder | Decoder) -> int | None:
    """Tokens that its positions have room for; None where there is no end to them."""
    return stack.positions.length if isinstance(stack.positions, LearnedPositions) else None
