"""Construction of a corpus from a stream of records.

1. Every record is written to a spool file, prefixed with the 64-bit hash of its first text column.
2. The hashes decide the boundaries of the splits (`splitting.Splitter`).
3. The spool files are read again and written as splits, then removed.

Memory is bounded by the size of the held-out splits, not by that of the corpus. Records with equal
text always end up in the same split.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import remove_stale_files
from addnorm.core.locks import LOCK_FILE
from addnorm.data.corpus import CARD_FILE, LABEL, SPLITS, Corpus, Record, write_corpus
from addnorm.data.record_counts import RecordCounts
from addnorm.data.splitting import (
    HASH_RANGE,
    HashSet64,
    HoldoutSize,
    Splitter,
    hash_text,
    split_key,
)

SPOOL_FOLDER = ".addnorm-spool"
"""Folder of the spool files inside the corpus folder, removed at the end."""
KEY_BYTES = 17
"""Bytes of a spooled line before its record: sixteen hex digits and a space."""


@dataclass(frozen=True)
class SplitPlan:
    """Sizes of the held-out splits, and the treatment of duplicates."""

    valid: HoldoutSize = field(default_factory=HoldoutSize)
    test: HoldoutSize = field(default_factory=HoldoutSize)
    seed: int = 0
    """Seed of the split."""
    unique: bool = False
    """Whether to drop repeated records."""


def check_output_folder(folder: str | Path, *, force: bool = False) -> None:
    """Raise UserError unless a corpus can be written to a folder.

    Args:
        folder: a new or empty folder, or a corpus
        force: whether a corpus may be replaced
    """
    folder = Path(folder)
    candidates = (folder, *folder.absolute().parents)
    existing = next(path for path in candidates if path.exists() or path.is_symlink())
    if not existing.is_dir():
        what = "a file" if existing.exists() else "a broken link"
        reason = f"is {what}" if existing == folder else f"cannot be made, {existing} is {what}"
        raise UserError(f"--out: expected a new or empty folder, got {folder}, which {reason}")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"--out: expected a writable folder, got {folder}; {existing} is read-only")
    if (folder / CARD_FILE).is_file():
        if not force:
            raise UserError(
                f"--out: {folder} already contains a corpus; use --force to replace it, or another "
                "folder"
            )
    elif folder.exists() and _has_foreign_files(folder):
        raise UserError(
            f"--out: expected a new or empty folder, got {folder}, which contains other files"
        )


def _has_foreign_files(folder: Path) -> bool:
    """Return whether a folder has files other than those of an interrupted `build_corpus`."""
    names = {path.name for path in folder.iterdir()} - {LOCK_FILE}
    split_files = {f"{split}.jsonl" for split in SPLITS}
    temporary = tuple(f".{name}." for name in (CARD_FILE, *split_files))
    leftovers = {name for name in names if name == SPOOL_FOLDER or name.startswith(temporary)}
    return bool(names - leftovers - (split_files if leftovers else set()))


def build_corpus(
    folder: str | Path,
    task: str,
    *,
    records_by_split: Mapping[str, Iterable[Record]],
    counts: RecordCounts,
    plan: SplitPlan,
    about: Mapping[str, Any],
) -> Corpus:
    """Write records as a corpus; on an error the folder stays as it was.

    Args:
        folder: output folder
        task: name of the task that the corpus is for
        records_by_split: records of train, and of valid and test if they are separate; a missing
            split is held out from train
        counts: counts of the reader; kept records are added, and all counts go to the card under
            `report`
        plan: sizes of the held-out splits
        about: facts for the card

    Raises:
        UserError: no record is left for a split, or the folder cannot be written
    """
    folder = Path(folder)
    is_new = not folder.exists()
    spools = folder / SPOOL_FOLDER
    shutil.rmtree(spools, ignore_errors=True)  # of an interrupted build
    remove_stale_files(folder)
    try:
        spools.mkdir(parents=True)
    except OSError as problem:
        raise UserError(
            f"--out: expected a writable folder, got {folder} ({problem.strerror})"
        ) from None
    try:
        edges = _spool_records(spools, records_by_split, counts=counts, plan=plan)
        sizes = _count_splits(spools, edges)
        if not sizes["train"]:
            raise UserError(_empty_corpus_message(counts, sizes))
        for split in records_by_split:
            if not sizes[split]:
                raise UserError(
                    f"{split}: expected at least one usable record in its file, got none; leave "
                    f"the file out to hold out part of train, or use --{split} 0"
                )
        splits = [split for split in SPLITS if sizes[split]]
        for split in splits:
            counts.keep(split, sizes[split])
        corpus = write_corpus(
            folder,
            task,
            splits={split: _read_spooled(spools, split, edges) for split in splits},
            about={**about, "seed": plan.seed, "report": counts.to_dict()},
        )
        for split in set(SPLITS) - set(splits):  # of a replaced corpus
            (folder / f"{split}.jsonl").unlink(missing_ok=True)
        return corpus
    finally:
        shutil.rmtree(spools, ignore_errors=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def _spool_records(
    spools: Path,
    records_by_split: Mapping[str, Iterable[Record]],
    *,
    counts: RecordCounts,
    plan: SplitPlan,
) -> tuple[int, int]:
    """Write every record, prefixed with its hash, to a spool file; return the split boundaries."""
    none = HoldoutSize(count=0)
    valid = none if "valid" in records_by_split else plan.valid
    test = none if "test" in records_by_split else plan.test
    splitter, held_out, seen = Splitter(valid=valid, test=test), HashSet64(), HashSet64()
    encode = json.JSONEncoder(ensure_ascii=False).encode
    # Train comes last: its records are looked up among those of the other splits.
    for split in sorted(records_by_split, key=lambda split: split == "train"):
        with (spools / split).open("wb") as spool:
            for record in records_by_split[split]:
                text = encode(dict(record))
                if plan.unique and not seen.add(hash_text(text)):
                    counts.drop("duplicate")
                    continue
                key = split_key(_first_text(record), plan.seed)
                if split != "train":
                    held_out.add(key)
                else:
                    splitter.observe(key)
                    if key in held_out:
                        counts.note("train records whose sentence is in the given valid or test")
                spool.write(f"{key:016x} {text}\n".encode())
    return splitter.edges()


def _first_text(record: Record) -> str:
    return next(text for column, text in record.items() if column != LABEL)


def _iter_spooled_lines(spools: Path, edges: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Yield (split, line) of all spooled records.

    Hashes are compared as text, which is fast: hex digits of equal length sort like numbers.
    """
    test, valid = (f"{edge:016x}" if edge < HASH_RANGE else "g" for edge in edges)
    for path in sorted(spools.iterdir()):
        split = path.name
        with path.open(encoding="utf-8", newline="\n") as spool:
            if split != "train":
                yield from ((split, line) for line in spool)
                continue
            for line in spool:
                yield "test" if line < test else "valid" if line < valid else split, line


def _count_splits(spools: Path, edges: tuple[int, int]) -> Counter[str]:
    return Counter(split for split, _ in _iter_spooled_lines(spools, edges))


def _read_spooled(
    spools: Path, target_split: str, edges: tuple[int, int]
) -> Iterator[dict[str, str]]:
    return (
        json.loads(line[KEY_BYTES:])
        for split, line in _iter_spooled_lines(spools, edges)
        if split == target_split
    )


def _empty_corpus_message(counts: RecordCounts, sizes: Counter[str]) -> str:
    if held := sizes.total():
        return (
            f"no record is left for training: all {held} are held out, because records with the "
            f"same sentence stay together; add more text, or use --valid 0 --test 0"
        )
    reasons = ", ".join(f"{reason} {number}" for reason, number in counts.dropped.items())
    first = next(iter(counts.first_locations.values()), "")
    hint = f"see {first}" if first else "check the input"
    if "invalid UTF-8" in counts.dropped:
        hint += ", and use iconv if it has another encoding"
    return (
        f"an empty corpus: expected at least one record with text, got none of {counts.read} "
        f"({reasons or 'no text'}); {hint}"
    )
