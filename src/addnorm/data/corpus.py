"""Corpora on disk: a folder with a card and one JSON-lines file per split, or several.

    corpus.json    {"task": "translate", "counts": {"train": 2}, "about": {}, "files": ..., ...}
    train.jsonl    {"source": "one", "target": "eins"}
                   {"source": "two", "target": "zwei"}

The files of a split that is too large for one are its shards, read in the order of their names:

    train-00001.jsonl, train-00002.jsonl, ...

A long document is stored in pieces, each but the first with `"continues": "previous"`.

The package knows records only by their columns. What a task does with them is defined in
`addnorm.tasks`; the card stores the name of the task that the corpus was made for, and the checksum
of each file, computed while the file is written. A corpus without checksums was written by hand.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.files import file_checksum, read_json_and_files, write_json
from addnorm.data.split_writer import SplitWriter

SPLITS = ("train", "valid", "test")
LABEL = "label"
"""Column whose values are classes. All other columns hold text for the tokenizer."""
CONTINUES, PREVIOUS = "continues", "previous"
"""Key and value that mark a record as a further piece of the document of the record before it."""
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
    checksums: dict[str, str] = field(default_factory=dict)
    """Checksums of the files when they were written, by name; empty if written by hand."""

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
        if not (folder / CARD_FILE).exists():
            raise UserError(f"no corpus at {folder}: it has no {CARD_FILE}; {hint}")
        card, checksums = read_json_and_files(folder / CARD_FILE, hint=hint)
        try:
            corpus = cls(
                folder,
                str(card["task"]),
                {str(split): int(count) for split, count in card["counts"].items()},
                tuple(map(str, card.get("labels", ()))),
                dict(card.get("about", {})),
                checksums,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise UserError(
                f"{folder / CARD_FILE} cannot be read ({type(problem).__name__}: {problem}); {hint}"
            ) from None
        for split in corpus.counts:
            if split not in SPLITS:  # a name becomes a path
                message = unknown_name_message("split", split, SPLITS)
                raise UserError(f"{folder / CARD_FILE}: {message}")
        if accepted and corpus.task not in accepted:
            names = " or ".join(map(repr, accepted))
            raise UserError(
                f"{folder}: expected a corpus for {names}, got one for {corpus.task!r}; {hint}"
            )
        return corpus

    @cached_property
    def digest(self) -> str:
        """Hash of the card and of all records, in their order."""
        content = {split: self.checksum(split) for split in self.counts}
        card = [self.task, self.counts, self.labels, self.about]
        text = json.dumps([card, content], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def verify(self, *splits: str) -> None:
        """Raise `UserError` if files have changed since the corpus was written.

        Training verifies a corpus once, at its start.

        Args:
            *splits: the splits to verify; all if empty
        """
        for path in (path for split in splits or self.counts for path in self.paths(split)):
            checksum = self._file_checksum(path)
            if checksum != self.checksums.get(path.name, checksum):
                raise UserError(
                    f"{path} has changed since it was written: its checksum differs from the one "
                    f"in {CARD_FILE}; restore it, or make the corpus again with `addnorm data`"
                )

    def checksum(self, split: str) -> str:
        """Return the checksum of a split: that of its file, or a hash of those of its shards."""
        checksums = [self._file_checksum(path) for path in self.paths(split)]
        if len(checksums) == 1:
            return checksums[0]
        return hashlib.sha256("\n".join(checksums).encode()).hexdigest()

    def _file_checksum(self, path: Path) -> str:
        """Return the checksum of a file; read once for each object, with bounded memory."""
        if path.name not in self._computed_checksums:
            self._computed_checksums[path.name] = file_checksum(path)
        return self._computed_checksums[path.name]

    @cached_property
    def _computed_checksums(self) -> dict[str, str]:
        return {}

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Column names, taken from the first record."""
        for split in self.counts:
            for path in self.paths(split):
                with path.open("rb") as lines:
                    for line in lines:
                        try:
                            return tuple(filter(CONTINUES.__ne__, json.loads(line).keys()))
                        except (ValueError, AttributeError, RecursionError):
                            raise _broken_record(path, 1, line, ()) from None
        return ()

    def paths(self, split: str) -> list[Path]:
        """Return the files of a split, in their order; several if it is sharded."""
        names = [name for name in self.checksums if _is_file_of(split, name)]
        paths = [self.folder / name for name in sorted(names)]
        paths = paths or list_split_files(self.folder, split)  # written by hand
        if split not in self.counts or not paths:
            there = ", ".join(split for split in self.counts) or "none"
            raise UserError(f"the corpus {self.folder} has no {split!r} split; it has {there}")
        if len(paths) > 1 and (self.folder / f"{split}.jsonl") in paths:
            raise UserError(
                f"{self.folder}: expected either {split}.jsonl or shards such as "
                f"{paths[0].name}, got both; remove what does not belong to the corpus"
            )
        for path in paths:
            if not path.is_file():
                raise UserError(f"{path} is missing; restore it, or make the corpus again")
        return paths

    def path(self, split: str) -> Path:
        """Return the file of a split; the first one if it is sharded."""
        return self.paths(split)[0]

    def size(self, split: str) -> int:
        """Return the bytes of a split."""
        return sum(path.stat().st_size for path in self.paths(split))

    def records(self, split: str) -> Iterator[dict[str, str]]:
        """Yield the records of a split."""
        for path in self.paths(split):
            with path.open("rb") as lines:
                yield from parse_records(lines, path, self.columns)


def list_split_files(folder: Path, split: str) -> list[Path]:
    """Return the file or the shards of a split that are in a folder, by name."""
    return sorted(path for path in folder.glob("*.jsonl") if _is_file_of(split, path.name))


def _is_file_of(split: str, name: str) -> bool:
    """Return whether a file name is that of a split, or of one of its shards.

    >>> _is_file_of("train", "train.jsonl"), _is_file_of("train", "train-00002.jsonl")
    (True, True)
    """
    stem, _, ending = name.partition(".")
    return ending == "jsonl" and (stem == split or stem.startswith(f"{split}-"))


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
            values = _select_columns(record, columns)
        except (ValueError, KeyError, TypeError, RecursionError):
            values = {}
        if not values or not all(isinstance(value, str) for value in values.values()):
            raise _broken_record(path, number + _count_lines_before(path, start), line, columns)
        yield values


def _select_columns(record: Record, columns: Iterable[str]) -> dict[str, str]:
    """Return the columns of a record, and the mark of a continuation if it has one."""
    values = {name: record[name] for name in columns}
    return values | {CONTINUES: record[CONTINUES]} if CONTINUES in record else values


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
    shard_bytes: int | None = None,
) -> Corpus:
    """Write a corpus split by split; the card is written last, so an interrupted write leaves none.

    Args:
        folder: output folder; an older corpus in it is replaced
        task: name of the task that the corpus is for
        splits: records of each split; the first record decides the columns
        about: facts for the card
        shard_bytes: size from which on a split continues in another file; None for one file

    Raises:
        UserError: no record for training
    """
    folder = Path(folder)
    counts: dict[str, int] = {}
    labels: set[str] = set()
    columns: tuple[str, ...] = ()
    checksums: dict[str, str] = {}
    with ExitStack() as files:
        for split, records in splits.items():
            writer = SplitWriter(folder, split, shard_bytes, files)
            counts[split] = 0
            for record in records:
                columns = columns or tuple(key for key in record if key != CONTINUES)
                values = _select_columns(record, columns)
                if LABEL in values:
                    labels.add(values[LABEL])
                text = json.dumps(values, ensure_ascii=False)
                writer.write(f"{text}\n".encode(errors="replace"))
                counts[split] += 1
            checksums |= writer.close()
        if not counts.get("train"):
            raise UserError("an empty corpus: no record is left for training; add more text")
        (folder / CARD_FILE).unlink(missing_ok=True)  # an older card must not describe new files
    for path in (path for split in counts for path in list_split_files(folder, split)):
        if path.name not in checksums:  # of an older corpus
            path.unlink()
    card: dict[str, Any] = {"task": task, "counts": counts}
    if LABEL in columns:
        card["labels"] = sorted(labels)
    card["about"] = dict(about or {})
    write_json(folder / CARD_FILE, card, files=checksums)
    return Corpus(folder, task, counts, tuple(sorted(labels)), dict(about or {}), checksums)
