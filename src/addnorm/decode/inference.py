"""Answers to lines: translations, continuations, labels, in the order of the lines."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, START, Tokenizer
from addnorm.decode.batching import batch_sentences, decode
from addnorm.decode.greedy import Hypothesis
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence, max_positions, pad_tokens
from addnorm.models import Model

LINES_PER_CHUNK = 512
"""Lines that are read before the first is answered."""
COMMANDS = {"translate": "translate", "lm": "generate", "classify": "classify"}
DEFAULT_TRANSLATE_OPTIONS, DEFAULT_GENERATE_OPTIONS = (
    DecodingOptions(beam=5),
    DecodingOptions(temperature=1.0),
)
"""How it is done where nobody says."""

Item = TypeVar("Item")


class RunProtocol(Protocol):
    """What is needed of a run: `addnorm.train.trained_run.Run` has it."""

    @property
    def task(self) -> str:
        """translate, lm or classify."""

    @property
    def model(self) -> Model:
        """The model, in eval mode."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""

    @property
    def labels(self) -> Sequence[str]:
        """The labels in the order of their numbers (classify)."""

    @property
    def recipe(self) -> Any:
        """The recipe: of it, `data`, `max_length` and `batch_tokens`."""


@dataclass(frozen=True)
class GeneratedText:
    """A text written for a line.

    text: with the prefix or the prompt; line breaks may be in it
    score: the model's log-probability of what is new, the end included
    ended: whether it ended by itself, or was cut off by the limit
    length: tokens that the score is made of
    source, tokens: the token numbers of the line as read, and of the text without start and end
    """

    text: str
    score: float = 0.0
    ended: bool = True
    length: int = 0
    source: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class LabelPrediction:
    """A label for a line, and the probability of each label; label None for an empty line.

    tokens: the token numbers of the line as read
    """

    label: str | None = None
    probability: float = 0.0
    probabilities: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass
class InputWarnings:
    """What was not taken as it stands."""

    num_lines: int = 0
    """Lines that were answered."""
    num_truncated: int = 0
    """Lines too long to be read whole."""


def translate(
    run: RunProtocol,
    lines: Iterable[str],
    options: DecodingOptions | None = None,
    *,
    prefixes: Iterable[str] | None = None,
    chunk: int = LINES_PER_CHUNK,
    notes: InputWarnings | None = None,
) -> Iterator[list[GeneratedText]]:
    """The `nbest` best translations of each line; one empty answer for an empty line.

    Lines are read `chunk` at a time. A line that is too long is cut at its end, and counted in
    `notes`. With prefixes, one a line, every translation of the line begins with its prefix.
    """
    check_task(run, "translate")
    options, notes = (
        options or DEFAULT_TRANSLATE_OPTIONS,
        InputWarnings() if notes is None else notes,
    )
    return _iter_translations(run, lines, options, prefixes, chunk, notes)


def _iter_translations(
    run: RunProtocol,
    lines: Iterable[str],
    options: DecodingOptions,
    prefixes: Iterable[str] | None,
    chunk: int,
    notes: InputWarnings,
) -> Iterator[list[GeneratedText]]:
    encoder, decoder = run.model.stacks[0], run.model.stacks[-1]
    most, room = (
        min(options.max_source, max_positions(encoder) or options.max_source),
        max_positions(decoder),
    )
    begins = None if prefixes is None else iter(prefixes)
    for texts in iter_chunks(lines, chunk):
        given = (
            [""] * len(texts)
            if begins is None
            else _take_prefixes(begins, len(texts), notes.num_lines)
        )
        if len(texts) < chunk:  # the last ones: what is wrong is told before they are answered
            _check_no_more_prefixes(begins, notes.num_lines + len(texts))
        sentences: dict[int, Sentence] = {}
        pairs = zip(run.tokenizer.encode(texts), run.tokenizer.encode(given), strict=True)
        for place, (ids, prefix) in enumerate(pairs):
            if not texts[place].strip() or not ids:
                continue
            notes.num_truncated += len(ids) >= most
            source = (*ids[: most - 1], END)
            limit = min(options.max_new, int(options.ratio * len(ids) + options.extra))
            left = limit if room is None else room - len(prefix)
            if left < 1:
                raise UserError(
                    f"the prefix of line {notes.num_lines + place + 1} has {len(prefix)} tokens, and "
                    f"this model writes at most {room}; shorten it"
                )
            limit = max(1, min(limit, left))
            number = notes.num_lines + place
            sentences[place] = Sentence((START, *prefix), limit, source, number)
        found = decode(run.model, list(sentences.values()), options)
        answers = dict(
            zip(sentences, _decode_hypotheses(run, list(sentences.values()), found), strict=True)
        )
        for place in range(len(texts)):
            notes.num_lines += 1
            yield answers.get(place, [GeneratedText("")])
    _check_no_more_prefixes(begins, notes.num_lines)


def _check_no_more_prefixes(prefixes: Iterator[str] | None, lines: int) -> None:
    if prefixes is not None and next(prefixes, None) is not None:
        raise UserError(
            f"there are more prefixes than the {lines} lines; wanted one a line; take some away"
        )


def _take_prefixes(prefixes: Iterator[str], count: int, num_read: int) -> list[str]:
    given = list(islice(prefixes, count))
    if len(given) < count:
        raise UserError(
            f"there are {num_read + len(given)} prefixes and more lines; wanted one a line, empty "
            "where nothing is to be forced"
        )
    return given


def _decode_hypotheses(
    run: RunProtocol, sentences: list[Sentence], results: list[list[Hypothesis]]
) -> Iterator[list[GeneratedText]]:
    """Hypotheses as answers."""
    for sentence, hypotheses in zip(sentences, results, strict=True):
        tokens = [(*sentence.prefix[1:], *each.tokens) for each in hypotheses]
        texts = run.tokenizer.decode([list(ids) for ids in tokens])
        yield [
            GeneratedText(text, each.score, each.ended, each.length, sentence.source, ids)
            for text, each, ids in zip(texts, hypotheses, tokens, strict=True)
        ]


def generate_texts(
    run: RunProtocol,
    prompts: Iterable[str],
    options: DecodingOptions | None = None,
    *,
    allow_blank: bool = False,
    chunk: int = LINES_PER_CHUNK,
    notes: InputWarnings | None = None,
) -> Iterator[list[GeneratedText]]:
    """`nbest` texts that begin with each prompt; `ended` where the model began another document.

    blank: whether an empty prompt is one, too, and a document is written from its beginning;
        otherwise it gets one empty answer. Of a prompt that is too long the end is read, and that
        is counted in `notes`; where positions are limited, half of them are left for new tokens.
    """
    check_task(run, "lm")
    options, notes = (
        options or DEFAULT_GENERATE_OPTIONS,
        InputWarnings() if notes is None else notes,
    )
    return _iter_generated(run, prompts, options, allow_blank, chunk, notes)


def _iter_generated(
    run: RunProtocol,
    prompts: Iterable[str],
    options: DecodingOptions,
    allow_blank: bool,
    chunk: int,
    notes: InputWarnings,
) -> Iterator[list[GeneratedText]]:
    room = max_positions(run.model.stacks[-1])
    most = options.max_source
    if room is not None:
        most = min(most, room + 1 - min(options.max_new, max(1, room // 2)))
    for texts in iter_chunks(prompts, chunk):
        sentences: dict[int, Sentence] = {}
        for place, ids in enumerate(run.tokenizer.encode(texts)):
            if not allow_blank and not texts[place].strip():
                continue
            notes.num_truncated += len(ids) >= most
            prefix = (START, *ids[max(0, len(ids) - most + 1) :])
            left = options.max_new if room is None else room - len(prefix) + 1
            limit = min(options.max_new, left)
            sentences[place] = Sentence(prefix, limit, number=notes.num_lines + place)
        # In training a document is followed by the start of the next one: that is its end.
        found = decode(run.model, list(sentences.values()), options, end=START)
        answers = {}
        for place, written in zip(
            sentences, _decode_hypotheses(run, list(sentences.values()), found), strict=True
        ):
            [head] = run.tokenizer.decode([list(sentences[place].prefix[1:])])
            answers[place] = [
                replace(a, text=_join_continuation(texts[place], head, a.text)) for a in written
            ]
        for place in range(len(texts)):
            notes.num_lines += 1
            yield answers.get(place, [GeneratedText("")])


def _join_continuation(prompt: str, decoded_prompt: str, text: str) -> str:
    """The prompt as it was given, and behind it what is new."""
    return (
        prompt.rstrip(" ") + text[len(decoded_prompt) :]
        if text.startswith(decoded_prompt)
        else text
    )


def classify(
    run: RunProtocol,
    lines: Iterable[str],
    *,
    batch_tokens: int = DecodingOptions.batch_tokens,
    chunk: int = LINES_PER_CHUNK,
    notes: InputWarnings | None = None,
) -> Iterator[LabelPrediction]:
    """The likeliest label of each line; an empty verdict for an empty line.

    A line longer than what was read in training is cut at its end, and counted in `notes`.
    """
    check_task(run, "classify")
    return _iter_predictions(
        run, lines, batch_tokens, chunk, InputWarnings() if notes is None else notes
    )


def _iter_predictions(
    run: RunProtocol, lines: Iterable[str], batch_tokens: int, chunk: int, notes: InputWarnings
) -> Iterator[LabelPrediction]:
    device = next(run.model.parameters()).device
    most, options = int(run.recipe.max_length), DecodingOptions(batch_tokens=batch_tokens)
    for texts in iter_chunks(lines, chunk):
        rows: dict[int, Sentence] = {}
        for place, ids in enumerate(run.tokenizer.encode(texts)):
            if texts[place].strip():
                notes.num_truncated += len(ids) >= most
                rows[place] = Sentence((START, *ids[: most - 1]), limit=1)
        verdicts: dict[int, LabelPrediction] = {}
        places, sentences = list(rows), list(rows.values())
        for batch in batch_sentences(sentences, options):
            ids_of = [sentences[number].prefix for number in batch]
            inputs, mask = pad_tokens(ids_of, device)
            with torch.inference_mode():
                p = run.model(inputs, mask=mask).cpu().double().softmax(-1)
            for number, row in zip(batch, p.tolist(), strict=True):
                best = max(range(len(row)), key=row.__getitem__)
                verdicts[places[number]] = LabelPrediction(
                    run.labels[best], row[best], tuple(row), sentences[number].prefix
                )
        for place in range(len(texts)):
            notes.num_lines += 1
            yield verdicts.get(place, LabelPrediction())


def check_task(run: RunProtocol, expected: str) -> None:
    """Refuse a run that was trained for something else."""
    if run.task != expected:
        raise UserError(
            f"this run was trained for {run.task!r}, wanted one for {expected!r}; try `addnorm "
            f"{COMMANDS.get(run.task, 'evaluate')}`"
        )


def iter_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of so many, the last one shorter."""
    if size < 1:
        raise UserError(f"chunk counts lines from 1, got {size}")
    items = iter(items)
    while part := list(islice(items, size)):
        yield part
