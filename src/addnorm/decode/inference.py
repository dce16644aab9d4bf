"""Answers to lines: translations, continuations, labels, in the order of the lines."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, START, Tokenizer
from addnorm.decode.batching import batches, decode
from addnorm.decode.greedy import Hypothesis
from addnorm.decode.options import Options
from addnorm.decode.stepper import Sentence, longest, padded
from addnorm.models import Model

CHUNK = 512
"""Lines that are read before the first is answered."""
VERBS = {"translate": "translate", "lm": "generate", "classify": "classify"}
TRANSLATING, CONTINUING = Options(beam=5), Options(temperature=1.0)
"""How it is done where nobody says."""

Item = TypeVar("Item")


class Trained(Protocol):
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
class Answer:
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
class Labelled:
    """A label for a line, and the probability of each label; label None for an empty line.

    tokens: the token numbers of the line as read
    """

    label: str | None = None
    probability: float = 0.0
    probabilities: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass
class Notes:
    """What was not taken as it stands."""

    lines: int = 0
    """Lines that were answered."""
    cut: int = 0
    """Lines too long to be read whole."""


def translate(
    run: Trained,
    lines: Iterable[str],
    options: Options | None = None,
    *,
    prefixes: Iterable[str] | None = None,
    chunk: int = CHUNK,
    notes: Notes | None = None,
) -> Iterator[list[Answer]]:
    """The `nbest` best translations of each line; one empty answer for an empty line.

    Lines are read `chunk` at a time. A line that is too long is cut at its end, and counted in
    `notes`. With prefixes, one a line, every translation of the line begins with its prefix.
    """
    check_task(run, "translate")
    options, notes = options or TRANSLATING, Notes() if notes is None else notes
    return _translated(run, lines, options, prefixes, chunk, notes)


def _translated(
    run: Trained,
    lines: Iterable[str],
    options: Options,
    prefixes: Iterable[str] | None,
    chunk: int,
    notes: Notes,
) -> Iterator[list[Answer]]:
    encoder, decoder = run.model.stacks[0], run.model.stacks[-1]
    most, room = min(options.max_source, longest(encoder) or options.max_source), longest(decoder)
    begins = None if prefixes is None else iter(prefixes)
    for texts in chunks(lines, chunk):
        given = [""] * len(texts) if begins is None else _as_many(begins, len(texts), notes.lines)
        if len(texts) < chunk:  # the last ones: what is wrong is told before they are answered
            _no_more(begins, notes.lines + len(texts))
        sentences: dict[int, Sentence] = {}
        pairs = zip(run.tokenizer.encode(texts), run.tokenizer.encode(given), strict=True)
        for place, (ids, prefix) in enumerate(pairs):
            if not texts[place].strip() or not ids:
                continue
            notes.cut += len(ids) >= most
            source = (*ids[: most - 1], END)
            limit = min(options.max_new, int(options.ratio * len(ids) + options.extra))
            left = limit if room is None else room - len(prefix)
            if left < 1:
                raise UserError(
                    f"the prefix of line {notes.lines + place + 1} has {len(prefix)} tokens, and "
                    f"this model writes at most {room}; shorten it"
                )
            limit = max(1, min(limit, left))
            number = notes.lines + place
            sentences[place] = Sentence((START, *prefix), limit, source, number)
        found = decode(run.model, list(sentences.values()), options)
        answers = dict(zip(sentences, _texts(run, list(sentences.values()), found), strict=True))
        for place in range(len(texts)):
            notes.lines += 1
            yield answers.get(place, [Answer("")])
    _no_more(begins, notes.lines)


def _no_more(begins: Iterator[str] | None, lines: int) -> None:
    if begins is not None and next(begins, None) is not None:
        raise UserError(
            f"there are more prefixes than the {lines} lines; wanted one a line; take some away"
        )


def _as_many(begins: Iterator[str], count: int, seen: int) -> list[str]:
    given = list(islice(begins, count))
    if len(given) < count:
        raise UserError(
            f"there are {seen + len(given)} prefixes and more lines; wanted one a line, empty "
            "where nothing is to be forced"
        )
    return given


def _texts(
    run: Trained, sentences: list[Sentence], found: list[list[Hypothesis]]
) -> Iterator[list[Answer]]:
    """Hypotheses as answers."""
    for sentence, hypotheses in zip(sentences, found, strict=True):
        tokens = [(*sentence.prefix[1:], *each.tokens) for each in hypotheses]
        texts = run.tokenizer.decode([list(ids) for ids in tokens])
        yield [
            Answer(text, each.score, each.ended, each.length, sentence.source, ids)
            for text, each, ids in zip(texts, hypotheses, tokens, strict=True)
        ]


def continue_text(
    run: Trained,
    prompts: Iterable[str],
    options: Options | None = None,
    *,
    blank: bool = False,
    chunk: int = CHUNK,
    notes: Notes | None = None,
) -> Iterator[list[Answer]]:
    """`nbest` texts that begin with each prompt; `ended` where the model began another document.

    blank: whether an empty prompt is one, too, and a document is written from its beginning;
        otherwise it gets one empty answer. Of a prompt that is too long the end is read, and that
        is counted in `notes`; where positions are limited, half of them are left for new tokens.
    """
    check_task(run, "lm")
    options, notes = options or CONTINUING, Notes() if notes is None else notes
    return _continued(run, prompts, options, blank, chunk, notes)


def _continued(
    run: Trained, prompts: Iterable[str], options: Options, blank: bool, chunk: int, notes: Notes
) -> Iterator[list[Answer]]:
    room = longest(run.model.stacks[-1])
    most = options.max_source
    if room is not None:
        most = min(most, room + 1 - min(options.max_new, max(1, room // 2)))
    for texts in chunks(prompts, chunk):
        sentences: dict[int, Sentence] = {}
        for place, ids in enumerate(run.tokenizer.encode(texts)):
            if not blank and not texts[place].strip():
                continue
            notes.cut += len(ids) >= most
            prefix = (START, *ids[max(0, len(ids) - most + 1) :])
            left = options.max_new if room is None else room - len(prefix) + 1
            limit = min(options.max_new, left)
            sentences[place] = Sentence(prefix, limit, number=notes.lines + place)
        # In training a document is followed by the start of the next one: that is its end.
        found = decode(run.model, list(sentences.values()), options, end=START)
        answers = {}
        for place, written in zip(
            sentences, _texts(run, list(sentences.values()), found), strict=True
        ):
            [head] = run.tokenizer.decode([list(sentences[place].prefix[1:])])
            answers[place] = [replace(a, text=_after(texts[place], head, a.text)) for a in written]
        for place in range(len(texts)):
            notes.lines += 1
            yield answers.get(place, [Answer("")])


def _after(prompt: str, head: str, whole: str) -> str:
    """The prompt as it was given, and behind it what is new."""
    return prompt.rstrip(" ") + whole[len(head) :] if whole.startswith(head) else whole


def classify(
    run: Trained,
    lines: Iterable[str],
    *,
    batch_tokens: int = Options.batch_tokens,
    chunk: int = CHUNK,
    notes: Notes | None = None,
) -> Iterator[Labelled]:
    """The likeliest label of each line; an empty verdict for an empty line.

    A line longer than what was read in training is cut at its end, and counted in `notes`.
    """
    check_task(run, "classify")
    return _classified(run, lines, batch_tokens, chunk, Notes() if notes is None else notes)


def _classified(
    run: Trained, lines: Iterable[str], batch_tokens: int, chunk: int, notes: Notes
) -> Iterator[Labelled]:
    device = next(run.model.parameters()).device
    most, options = int(run.recipe.max_length), Options(batch_tokens=batch_tokens)
    for texts in chunks(lines, chunk):
        rows: dict[int, Sentence] = {}
        for place, ids in enumerate(run.tokenizer.encode(texts)):
            if texts[place].strip():
                notes.cut += len(ids) >= most
                rows[place] = Sentence((START, *ids[: most - 1]), limit=1)
        verdicts: dict[int, Labelled] = {}
        places, sentences = list(rows), list(rows.values())
        for batch in batches(sentences, options):
            ids_of = [sentences[number].prefix for number in batch]
            inputs, mask = padded(ids_of, device)
            with torch.inference_mode():
                p = run.model(inputs, mask=mask).cpu().double().softmax(-1)
            for number, row in zip(batch, p.tolist(), strict=True):
                best = max(range(len(row)), key=row.__getitem__)
                verdicts[places[number]] = Labelled(
                    run.labels[best], row[best], tuple(row), sentences[number].prefix
                )
        for place in range(len(texts)):
            notes.lines += 1
            yield verdicts.get(place, Labelled())


def check_task(run: Trained, wanted: str) -> None:
    """Refuse a run that was trained for something else."""
    if run.task != wanted:
        raise UserError(
            f"this run was trained for {run.task!r}, wanted one for {wanted!r}; try `addnorm "
            f"{VERBS.get(run.task, 'evaluate')}`"
        )


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of so many, the last one shorter."""
    if size < 1:
        raise UserError(f"chunk counts lines from 1, got {size}")
    items = iter(items)
    while part := list(islice(items, size)):
        yield part
