"""Corpora on disk: three files of JSON lines and a card, read as streams."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.files import atomic_write

SPLITS = ("train", "valid", "test")
COLUMNS = {"translate": ("source", "target"), "lm": ("text",), "classify": ("text", "label")}
TASKS = tuple(COLUMNS)
CARD_FILE = "corpus.json"
CREATE_HINT = "make one with `addnorm data`, say `addnorm data demo --task {task} -o corpus`"

Record = Mapping[str, str]


@dataclass(frozen=True)
class Corpus:
    """A folder that `addnorm data` made: `corpus.json` and `train`, `valid`, `test` `.jsonl`.

    A record of `translate` has source and target, of `lm` a text, of `classify` a text and a label.
    """

    folder: Path
    task: str
    counts: dict[str, int]
    """Records of each split."""
    labels: tuple[str, ...] = ()
    """Classes in the order of their numbers (classify)."""
    about: dict[str, Any] = field(default_factory=dict)
    """Where it comes from and what was counted when it was made."""

    @classmethod
    def open(cls, folder: str | Path, task: str | None = None) -> "Corpus":
        """Read the card of a corpus; refuses one of another task, if that is given."""
        folder = Path(folder)
        how = CREATE_HINT.format(task=task or "translate")
        if not folder.exists():
            raise UserError(f"no corpus at {folder}: there is no such folder; {how}")
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
            raise UserError(f"no corpus at {folder}: it has no {CARD_FILE}; {how}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise UserError(
                f"{folder / CARD_FILE} cannot be read ({type(problem).__name__}: {problem}); {how}"
            ) from None
        if corpus.task not in TASKS:
            raise UserError(
                f"{folder / CARD_FILE}: {unknown_name_message('task', corpus.task, TASKS)}"
            )
        if task is not None and corpus.task != task:
            raise UserError(
                f"{folder} is a corpus for {corpus.task!r}, wanted one for {task!r}; {how}"
            )
        return corpus

    @cached_property
    def digest(self) -> str:
        """What tells it from other corpora: its card, and the sizes of its files."""
        sizes = [(split, self.path(split).stat().st_size) for split in self.counts]
        told = f"{(self.folder / CARD_FILE).read_text(encoding='utf-8')}{sizes}"
        return hashlib.sha256(told.encode()).hexdigest()

    def path(self, split: str) -> Path:
        """The file of a split."""
        path = self.folder / f"{split}.jsonl"
        if split not in self.counts or not path.is_file():
            there = ", ".join(split for split in self.counts) or "none"
            raise UserError(f"the corpus {self.folder} has no {split!r} part; it has {there}")
        return path

    def records(self, split: str) -> Iterator[dict[str, str]]:
        """The records of a split, one by one."""
        with self.path(split).open("rb") as lines:
            yield from parse_records(lines, self.path(split), self.task)


def parse_records(
    lines: Iterable[bytes], path: Path, task: str, *, start: int = 0
) -> Iterator[dict[str, str]]:
    """Records out of lines of JSON; one that is none is refused. start: byte of the first line."""
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            values = {name: record[name] for name in COLUMNS[task]}
        except (ValueError, KeyError, TypeError):
            values = {}
        if not values or not all(isinstance(value, str) for value in values.values()):
            number += _count_lines_before(path, start)
            raise UserError(
                f"{path}, record {number} is {line[:60].decode(errors='replace')!r}; wanted a JSON "
                f"object with text for {' and '.join(COLUMNS[task])}"
            )
        yield values


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
    """Write a corpus, each split as it comes; the card is written last, so a corpus is whole."""
    if task not in TASKS:
        raise UserError(unknown_name_message("task", task, TASKS))
    folder = Path(folder)
    counts: dict[str, int] = {}
    labels: set[str] = set()
    with ExitStack() as files:
        for split, records in splits.items():
            name = files.enter_context(atomic_write(folder / f"{split}.jsonl"))
            with name.open("w", encoding="utf-8", errors="replace", newline="\n") as file:
                counts[split] = 0
                for record in records:
                    values = {column: record[column] for column in COLUMNS[task]}
                    if task == "classify":
                        labels.add(values["label"])
                    file.write(json.dumps(values, ensure_ascii=False) + "\n")
                    counts[split] += 1
        if not counts.get("train"):
            raise UserError("an empty corpus: no record is left for training; give it more text")
        (folder / CARD_FILE).unlink(
            missing_ok=True
        )  # an older one must not speak for the new files
    card: dict[str, Any] = {"task": task, "counts": counts}
    if task == "classify":
        card["labels"] = sorted(labels)
    card["about"] = dict(about or {})
    with atomic_write(folder / CARD_FILE) as name:
        name.write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return Corpus(folder, task, counts, tuple(sorted(labels)), dict(about or {}))
