"""From records to a corpus: spooled once, split by sentence, written whole."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.corpus import CARD_FILE, COLUMNS, SPLITS, Corpus, Record, write_corpus
from addnorm.data.record_counts import RecordCounts
from addnorm.data.splitting import (
    HASH_RANGE,
    HashSet64,
    HoldoutSize,
    Splitter,
    hash_text,
    split_key,
)

SPOOL_FOLDER = ".addnorm-spool"  # below the corpus folder while it is made
KEY_BYTES = 17  # bytes of a spooled line before its record: sixteen hex digits and a blank


@dataclass(frozen=True)
class SplitPlan:
    """How a corpus is divided, and whether records that come twice stay."""

    valid: HoldoutSize = field(default_factory=HoldoutSize)
    test: HoldoutSize = field(default_factory=HoldoutSize)
    seed: int = 0
    unique: bool = False


def check_out(folder: str | Path, *, force: bool = False) -> None:
    """Refuse to write over what is no corpus, and over a corpus unless told to."""
    folder = Path(folder)
    above = (folder, *folder.absolute().parents)
    there = next(path for path in above if path.exists() or path.is_symlink())
    if not there.is_dir():
        what = "a file" if there.exists() else "a link to nowhere"
        what = f"is {what}" if there == folder else f"cannot be made, since {there} is {what}"
        raise UserError(
            f"{folder} {what}; wanted a folder for the corpus, new or empty; try -o corpus"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(
            f"{folder}: nothing can be written to {there}; wanted a folder that you may write to; "
            f"try another -o"
        )
    if (folder / CARD_FILE).is_file():
        if not force:
            raise UserError(
                f"{folder} holds a corpus already; try --force to replace it, or another -o"
            )
    elif folder.exists() and _has_foreign_files(folder):
        raise UserError(
            f"{folder} is not empty and no corpus; wanted a new or an empty folder; try another -o"
        )


def _has_foreign_files(folder: Path) -> bool:
    """Whether there is anything that no killed writer of ours left."""
    names = {path.name for path in folder.iterdir()}
    parts = {f"{split}.jsonl" for split in SPLITS}
    temporary = tuple(f".{name}." for name in (CARD_FILE, *parts))
    left = {name for name in names if name == SPOOL_FOLDER or name.startswith(temporary)}
    return bool(names - left - (parts if left else set()))


def build_corpus(
    folder: str | Path,
    task: str,
    *,
    records_by_split: Mapping[str, Iterable[Record]],
    counts: RecordCounts,
    plan: SplitPlan,
    about: Mapping[str, Any],
) -> Corpus:
    """Write the records of parts (train, and valid and test if they are there) as a corpus.

    Parts that are missing are split off train. `counts` has seen what was left out before; what is
    kept is counted here, and all of it goes onto the card under `report`. A folder is left as it
    was if something goes wrong.
    """
    folder = Path(folder)
    made = not folder.exists()
    spools = folder / SPOOL_FOLDER
    shutil.rmtree(spools, ignore_errors=True)  # of a killed run
    try:
        spools.mkdir(parents=True)
    except OSError as problem:
        raise UserError(
            f"{folder} cannot be made ({problem.strerror}); wanted a folder for the corpus that "
            f"can be written to; try another -o"
        ) from None
    try:
        edges = _spool_records(
            spools, task, records_by_split=records_by_split, counts=counts, plan=plan
        )
        sizes = _count_splits(spools, edges)
        if not sizes["train"]:
            raise UserError(_empty_corpus_message(counts, sizes))
        for split in records_by_split:
            if not sizes[split]:
                raise UserError(
                    f"the part given for {split} has no record that can be used; wanted at least "
                    f"one; leave it out to hold out some of train, or none with --{split} 0"
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
        for split in set(SPLITS) - set(splits):  # of the corpus that was here before
            (folder / f"{split}.jsonl").unlink(missing_ok=True)
        return corpus
    finally:
        shutil.rmtree(spools, ignore_errors=True)
        if made and not any(folder.iterdir()):
            folder.rmdir()


def _spool_records(
    spools: Path,
    task: str,
    *,
    records_by_split: Mapping[str, Iterable[Record]],
    counts: RecordCounts,
    plan: SplitPlan,
) -> tuple[int, int]:
    """Write every record to disk behind the hash of its sentence; the edges of the splits."""
    none = HoldoutSize(count=0)
    valid = none if "valid" in records_by_split else plan.valid
    test = none if "test" in records_by_split else plan.test
    splitter, held, seen = Splitter(valid=valid, test=test), HashSet64(), HashSet64()
    encoded = json.JSONEncoder(ensure_ascii=False).encode
    for part in sorted(
        records_by_split, key=lambda part: part == "train"
    ):  # train last: it is looked up
        with (spools / part).open("wb") as spool:
            for record in records_by_split[part]:
                text = encoded(dict(record))
                if plan.unique and not seen.add(hash_text(text)):
                    counts.drop("duplicate")
                    continue
                key = split_key(record[COLUMNS[task][0]], plan.seed)
                if part != "train":
                    held.add(key)
                else:
                    splitter.observe(key)
                    if key in held:
                        counts.note("train records whose sentence is in the given valid or test")
                spool.write(f"{key:016x} {text}\n".encode())
    return splitter.edges()


def _iter_spooled_lines(spools: Path, edges: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """(split, line) of all that is spooled. Hashes are compared as they are written: it is quick,
    and digits of one length have the order of their numbers."""
    test, valid = (f"{edge:016x}" if edge < HASH_RANGE else "g" for edge in edges)
    for path in sorted(spools.iterdir()):
        part = path.name
        with path.open(encoding="utf-8", newline="\n") as spool:
            if part != "train":
                yield from ((part, line) for line in spool)
                continue
            for line in spool:
                yield "test" if line < test else "valid" if line < valid else part, line


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
            f"same sentence stay together; give more text, or --valid 0 --test 0"
        )
    reasons = ", ".join(f"{reason} {number}" for reason, number in counts.dropped.items())
    first = next(iter(counts.first_locations.values()), "")
    hint = f"look at {first}" if first else "look into what was given"
    if "invalid UTF-8" in counts.dropped:
        hint += ", and try iconv if it has another encoding"
    return (
        f"an empty corpus: of {counts.read} records read none was kept ({reasons or 'no text'}); "
        f"wanted at least one with text; {hint}"
    )
