"""Spool files: all records of a corpus on disk, until the boundaries of its splits are known.

`HashSpool` is for independent records: a hash of the text decides the split, so equal texts are
always in the same one. `DocumentSpool` is for pieces of documents: the splits are consecutive.

    0                                           valid starts      test starts
    |------------------ train ------------------|---- valid ----|---- test ----|
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from addnorm.core.errors import UserError
from addnorm.data.corpus import CONTINUES, LABEL, PREVIOUS, SPLITS, Record
from addnorm.data.record_counts import RecordCounts
from addnorm.data.splitting import (
    HASH_RANGE,
    HashSet64,
    HoldoutSize,
    Splitter,
    check_holdout_sizes,
    hash_text,
    split_key,
)

KEY_BYTES = 17
"""Bytes of a line of a `HashSpool` before its record: sixteen hex digits and a space."""


class Spool(ABC):
    """Records of all splits in files of a folder.

    Args:
        folder: folder of the spool files
        counts: counts of records, updated in place
        valid, test: sizes to hold out from train; 0 for splits with records of their own
    """

    def __init__(
        self, folder: Path, counts: RecordCounts, *, valid: HoldoutSize, test: HoldoutSize
    ) -> None:
        self.folder, self.counts = folder, counts
        self.valid, self.test = valid, test

    @abstractmethod
    def fill(self, records_by_split: Mapping[str, Iterable[Record]]) -> None:
        """Write all records; raise UserError if nothing would be left for training."""

    @abstractmethod
    def count_records(self) -> Counter[str]:
        """Return the number of records of each split."""

    @abstractmethod
    def read(self, split: str) -> Iterator[dict[str, str]]:
        """Yield the records of a split."""


class HashSpool(Spool):
    """Spool of independent records, each prefixed with the 64-bit hash of its first text column.

    Args:
        folder, counts, valid, test: as in `Spool`
        seed: seed of the split
        unique: whether to drop repeated records
    """

    def __init__(
        self,
        folder: Path,
        counts: RecordCounts,
        *,
        valid: HoldoutSize,
        test: HoldoutSize,
        seed: int,
        unique: bool,
    ) -> None:
        super().__init__(folder, counts, valid=valid, test=test)
        self.seed, self.unique = seed, unique
        self.edges = (0, 0)
        """Hashes at which test and valid end."""

    def fill(self, records_by_split: Mapping[str, Iterable[Record]]) -> None:
        splitter = Splitter(valid=self.valid, test=self.test)
        held_out, seen = HashSet64(), HashSet64()
        encode = json.JSONEncoder(ensure_ascii=False).encode
        # Train comes last: its records are looked up among those of the other splits.
        for split in sorted(records_by_split, key=lambda split: split == "train"):
            with (self.folder / split).open("wb") as spool:
                for record in records_by_split[split]:
                    text = encode(dict(record))
                    if self.unique and not seen.add(hash_text(text)):
                        self.counts.drop("duplicate")
                        continue
                    key = split_key(_first_text(record), self.seed)
                    if split != "train":
                        held_out.add(key)
                    else:
                        splitter.observe(key)
                        if key in held_out:
                            self.counts.note(
                                "train records whose sentence is in the given valid or test"
                            )
                    spool.write(f"{key:016x} {text}\n".encode())
        self.edges = splitter.edges()

    def count_records(self) -> Counter[str]:
        return Counter(split for split, _ in self._iter_lines())

    def read(self, split: str) -> Iterator[dict[str, str]]:
        return (json.loads(line[KEY_BYTES:]) for part, line in self._iter_lines() if part == split)

    def _iter_lines(self) -> Iterator[tuple[str, str]]:
        """Yield (split, line) of all spooled records.

        Hashes are compared as text, which is fast: hex digits of equal length sort like numbers.
        """
        test, valid = (f"{edge:016x}" if edge < HASH_RANGE else "g" for edge in self.edges)
        for path in sorted(self.folder.iterdir()):
            split = path.name
            with path.open(encoding="utf-8", newline="\n") as spool:
                if split != "train":
                    yield from ((split, line) for line in spool)
                    continue
                for line in spool:
                    yield "test" if line < test else "valid" if line < valid else split, line


def _first_text(record: Record) -> str:
    return next(text for column, text in record.items() if column != LABEL)


class DocumentSpool(Spool):
    """Spool of pieces of documents, of which the last characters are held out.

    A piece at the boundary of two splits is cut. In each split the first piece begins a document.
    """

    def fill(self, records_by_split: Mapping[str, Iterable[Record]]) -> None:
        sizes: dict[str, int] = {}
        for split, records in records_by_split.items():
            sizes[split] = 0
            with (self.folder / split).open("w", encoding="utf-8", newline="\n") as spool:
                for record in records:
                    sizes[split] += len(record["text"])
                    spool.write(json.dumps(dict(record)) + "\n")
        total = sizes["train"]
        check_holdout_sizes(self.valid, self.test, total, "characters")
        test_start = total - self.test.num_characters(total)
        valid_start = test_start - self.valid.num_characters(total)
        if valid_start <= 0 < total:  # a fraction and a number
            raise UserError(
                f"--valid and --test: expected fewer than {total} characters, got "
                f"{total - valid_start}; none is left for training"
            )
        ranges = {
            "train": ("train", 0, valid_start),
            "valid": ("train", valid_start, test_start),
            "test": ("train", test_start, total),
        }
        ranges |= {split: (split, 0, size) for split, size in sizes.items() if split != "train"}
        self.ranges = {split: ranges[split] for split in SPLITS}
        """File, first character and end of each split."""
        for split, (_, start, end) in self.ranges.items():
            if end > start:
                self.counts.note(f"characters, {split}", end - start)

    def count_records(self) -> Counter[str]:
        counts = Counter({split: sum(1 for _ in self.read(split)) for split in self.ranges})
        self.counts.add_read(counts.total())  # known only now, because pieces are cut
        return counts

    def read(self, split: str) -> Iterator[dict[str, str]]:
        name, start, end = self.ranges[split]
        position, is_first = 0, True
        with (self.folder / name).open(encoding="utf-8", newline="\n") as spool:
            for line in spool:
                record = json.loads(line)
                text, before = record["text"], position
                position += len(text)
                if part := text[max(0, start - before) : max(0, end - before)]:
                    begins = is_first or CONTINUES not in record
                    yield {"text": part} if begins else {"text": part, CONTINUES: PREVIOUS}
                    is_first = False
                if position >= end:
                    break
