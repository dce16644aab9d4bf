"""Construction of a corpus from a stream of records.

1. Every record is written to a spool file (`spools.py`), until the boundaries of the splits are
   known.
2. The spool files are read again and written as splits, then removed.

Memory is bounded by the size of the held-out splits, not by that of the corpus.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import remove_stale_files
from addnorm.core.locks import LOCK_FILE
from addnorm.data.corpus import (
    CARD_FILE,
    SPLITS,
    Corpus,
    Record,
    list_split_files,
    write_corpus,
)
from addnorm.data.record_counts import RecordCounts
from addnorm.data.splitting import HoldoutSize
from addnorm.data.spools import DocumentSpool, HashSpool, Spool

SPOOL_FOLDER = ".addnorm-spool"
"""Folder of the spool files inside the corpus folder, removed at the end."""


@dataclass(frozen=True)
class SplitPlan:
    """Sizes of the held-out splits, and the treatment of duplicates."""

    valid: HoldoutSize = field(default_factory=HoldoutSize)
    test: HoldoutSize = field(default_factory=HoldoutSize)
    seed: int = 0
    """Seed of the split."""
    unique: bool = False
    """Whether to drop repeated records."""
    shard_bytes: int | None = None
    """Size from which on a split continues in another file; None for one file."""
    is_stream: bool = False
    """Whether records are pieces of documents: the end of the text is held out, not a sample."""


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
    split_files = {path.name for split in SPLITS for path in list_split_files(folder, split)}
    temporary = (f".{CARD_FILE}.", *(f".{split}{mark}" for split in SPLITS for mark in ".-"))
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
        spool = _make_spool(spools, records_by_split, counts=counts, plan=plan)
        spool.fill(records_by_split)
        sizes = spool.count_records()
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
            splits={split: spool.read(split) for split in splits},
            about={**about, "seed": plan.seed, "report": counts.to_dict()},
            shard_bytes=plan.shard_bytes,
        )
        for split in set(SPLITS) - set(splits):  # of a replaced corpus
            for path in list_split_files(folder, split):
                path.unlink()
        return corpus
    finally:
        shutil.rmtree(spools, ignore_errors=True)
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def _make_spool(
    folder: Path,
    records_by_split: Mapping[str, Iterable[Record]],
    *,
    counts: RecordCounts,
    plan: SplitPlan,
) -> Spool:
    none = HoldoutSize(count=0)
    valid = none if "valid" in records_by_split else plan.valid
    test = none if "test" in records_by_split else plan.test
    if plan.is_stream:
        return DocumentSpool(folder, counts, valid=valid, test=test)
    return HashSpool(folder, counts, valid=valid, test=test, seed=plan.seed, unique=plan.unique)


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
