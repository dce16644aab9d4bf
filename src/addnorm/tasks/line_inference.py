"""Shared parts of the functions that apply a run to lines of text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import Tokenizer
from addnorm.decode.greedy import Hypothesis
from addnorm.decode.stepper import Sentence
from addnorm.tasks.base import RunProtocol, registry

LINES_PER_CHUNK = 512
"""Lines that are read before the first output."""


@dataclass(frozen=True)
class GeneratedText:
    """A generated text.

    text: the text with its prefix or prompt; may contain line breaks
    score: log-probability of the new tokens, the end token included
    ended: whether the model ended the text, rather than the length limit
    length: number of tokens in the score
    source: token ids of the input line
    tokens: token ids of the text without start and end
    """

    text: str
    score: float = 0.0
    ended: bool = True
    length: int = 0
    source: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass
class InputWarnings:
    """Counts of lines that were changed before the model read them."""

    num_lines: int = 0
    """Lines read."""
    num_truncated: int = 0
    """Lines that were truncated because they are too long."""
    num_unmasked: int = 0
    """Lines without a mask token (fill-mask)."""


def check_task(run: RunProtocol, expected: str) -> None:
    """Raise UserError for a run of another task."""
    if run.task != expected:
        command = registry.member(run.task).command if run.task in registry else "evaluate"
        raise UserError(
            f"expected a run trained for {expected!r}, got one trained for {run.task!r}; try "
            f"`addnorm {command}`"
        )


def decode_hypotheses(
    tokenizer: Tokenizer, sentences: Sequence[Sentence], results: Sequence[list[Hypothesis]]
) -> Iterator[list[GeneratedText]]:
    """Yield the texts of each sentence's hypotheses."""
    for sentence, hypotheses in zip(sentences, results, strict=True):
        tokens = [(*sentence.prefix[1:], *each.tokens) for each in hypotheses]
        texts = tokenizer.decode([list(ids) for ids in tokens])
        yield [
            GeneratedText(text, each.score, each.ended, each.length, sentence.source, ids)
            for text, each, ids in zip(texts, hypotheses, tokens, strict=True)
        ]
