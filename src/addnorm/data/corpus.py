"""Corpora on disk: a folder with a card and one JSON-lines file per split.

    corpus.json    {"task": "translate", "counts": {"train": 2}, "about": {}}
    train.jsonl    {"source": "one", "target": "eins"}
                   {"source": "two", "target": "zwei"}

The package knows records only by their columns. What a task does with them is defined in
`addnorm.tasks`; the card stores the name of the task that the corpus was made for.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write

SPLITS = ("train", "valid", "test")
LABEL = "label"
"""Column whose values are classes. All other columns hold text for the tokenizer."""
CARD_FILE = "corpus.json"
CREATE_HINT = "make one with `addnorm data`, for example `addnorm data demo{task} -o corpus`"

Record = Mapping[str, str]


@dataclass(frozen=True)
class Corpus:
    """A corpus folder written by `addnorm data`."""

    folder: Path
    task: str
    """Name of the task that the corpus was made for."""
    counts: dict[str, int]
    """Records of each split."""
    labels: tuple[str, ...] = ()
    """Classes in the order of their indices; empty without a label column."""
    about: dict[str, Any] = field(default_factory=dict)
    """Source of the corpus and statistics of its creation."""

    @classmethod
    def open(cls, folder: str | Path, task: str | Collection[str] | None = None) -> "Corpus":
        """Read the card of a corpus.

        Args:
            folder: corpus folder
            task: task names to accept; None accepts any

        Raises:
            UserError: the folder contains no corpus, or one for another task
        """
        folder = Path(folder)
        accepted = [task] if isinstance(task, str) else list(task or ())
        hint = CREATE_HINT.format(task=f" --task {accepted[0]}" if accepted else "")
        if not folder.exists():
            raise UserError(f"no corpus at {folder}: there is no such folder; {hint}")
        try:
            card = json.loads((folder / CARD_FILE).read_text(encoding="utf-8"))
            corpus = cls(
                folder,
                str(card["task"]),
                {str(split): int(count) for split, count in card["counts"].items()},
                tuple(map(str, card.get("labels", ()))),
                dict(card.get("about", {})),
            )
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"no corpus at {folder}: it has no {CARD_FILE}; {hint}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise UserError(
                f"{folder / CARD_FILE} cannot be read ({type(problem).__name__}: {problem}); {hint}"
            ) from None
        if accepted and corpus.task not in accepted:
            names = " or ".join(map(repr, accepted))
            raise UserError(
                f"{folder}: expected a corpus for {names}, got one for {corpus.task!r}; {hint}"
            )
        return corpus

    @cached_property
    def digest(self) -> str:
        """Hash of the card and of the file sizes."""
        sizes = [(split, self.path(split).stat().st_size) for split in self.counts]
        text = f"{(self.folder / CARD_FILE).read_text(encoding='utf-8')}{sizes}"
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Column names, taken from the first record."""
        for split in self.counts:
            with self.path(split).open("rb") as lines:
                for line in lines:
                    try:
                        return tuple(json.loads(line).keys())
                    except (ValueError, AttributeError):
                        raise _broken_record(self.path(split), 1, line, ()) from None
        return ()

    def path(self, split: str) -> Path:
        """Return the file of a split."""
        path = self.folder / f"{split}.jsonl"
        if split not in self.counts or not path.is_file():
            there = ", ".join(split for split in self.counts) or "none"
            raise UserError(f"the corpus {self.folder} has no {split!r} part; it has {there}")
        return path

    def records(self, split: str) -> Iterator[dict[str, str]]:
        """Yield the records of a split."""
        with self.path(split).open("rb") as lines:
            yield from parse_records(lines, self.path(split), self.columns)


def parse_records(
    lines: Iterable[bytes], path: Path, columns: Sequence[str], *, start: int = 0
) -> Iterator[dict[str, str]]:
    """Yield the records of JSON lines.

    Args:
        lines: lines of the file, or of a part of it
        path: the file, for error messages
        columns: columns to keep; each must hold text
        start: byte offset of the first line in the file

    Raises:
        UserError: a line is not a JSON object with text in every column
    """
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            values = {name: record[name] for name in columns}
        except (ValueError, KeyError, TypeError):
            values = {}
        if not values or not all(isinstance(value, str) for value in values.values()):
            raise _broken_record(path, number + _count_lines_before(path, start), line, columns)
        yield values


def _broken_record(path: Path, number: int, line: bytes, columns: Sequence[str]) -> UserError:
    text = f" with text for {' and '.join(columns)}" if columns else ""
    return UserError(
        f"{path}, record {number}: expected a JSON object{text}, "
        f"got {line[:60].decode(errors='replace')!r}"
    )


def _count_lines_before(path: Path, start: int) -> int:
    with path.open("rb") as file:
        return file.read(start).count(b"\n")


def write_corpus(
    folder: str | Path,
    task: str,
    *,
    splits: Mapping[str, Iterable[Record]],
    about: Mapping[str, Any] | None = None,
) -> Corpus:
    """Write a corpus split by split; the card is written last, so an interrupted write leaves none.

    Args:
        folder: output folder; an older corpus in it is replaced
        task: name of the task that the corpus is for
        splits: records of each split; the first record decides the columns
        about: facts for the card

    Raises:
        UserError: no record for training
    """
    folder = Path(folder)
    counts: dict[str, int] = {}
    labels: set[str] = set()
    columns: tuple[str, ...] = ()
    with ExitStack() as files:
        for split, records in splits.items():
            name = files.enter_context(atomic_write(folder / f"{split}.jsonl"))
            with name.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
                counts[split] = 0
                for record in records:
                    columns = columns or tuple(record)
                    values = {column: record[column] for column in columns}
                    if LABEL in values:
                        labels.add(values[LABEL])
                    file.write(json.dumps(values, ensure_ascii=False) + "\n")
                    counts[split] += 1
        if not counts.get("train"):
            raise UserError("an empty corpus: no record is left for training; give it more text")
        (folder / CARD_FILE).unlink(missing_ok=True)  # an older card must not describe new files
    card: dict[str, Any] = {"task": task, "counts": counts}
    if LABEL in columns:
        card["labels"] = sorted(labels)
    card["about"] = dict(about or {})
    with atomic_write(folder / CARD_FILE) as name:
        name.write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return Corpus(folder, task, counts, tuple(sorted(labels)), dict(about or {}))
