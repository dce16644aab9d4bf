"""From the options of `addnorm data` to a corpus, and what is told on the way."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from addnorm.data.corpus import Record
    from addnorm.data.corpus_builder import Plan
    from addnorm.data.record_counts import Counts

EVERY = 1_000_000  # records between two lines of talk where there is no terminal


def check(out: Path, *, force: bool, errors: str = "drop") -> None:
    """Refuse what can be refused before anything is read."""
    from addnorm.core.errors import UserError, unknown
    from addnorm.data.corpus_builder import check_out
    from addnorm.data.readers.streams import ERRORS

    if errors not in ERRORS:
        raise UserError(unknown("--errors", errors, ERRORS))
    check_out(out, force=force)


def languages_of(source: str, target: str) -> dict[str, list[str]]:
    """What a card says about languages; nothing unless both are known."""
    return {"languages": [source, target]} if source and target else {}


def planned(
    parts: Mapping[str, Any],
    *,
    valid: str | None = None,
    test: str | None = None,
    seed: int,
    unique: bool = False,
) -> "Plan":
    """How to divide what is not divided already: into `parts`."""
    from addnorm.core.errors import UserError
    from addnorm.data.corpus_builder import Plan
    from addnorm.data.splitting import Size

    for split, size in (("valid", valid), ("test", test)):
        if split in parts and size is not None:
            raise UserError(
                f"got --{split} {size} and a file for it; wanted one of them; leave out the other"
            )
    sizes = {"valid": Size.parse(valid, "--valid"), "test": Size.parse(test, "--test")}
    return Plan(**sizes, seed=seed, unique=unique)


def write(
    out: Path,
    task: str,
    *,
    parts: "Mapping[str, Iterable[Record]]",
    counts: "Counts",
    plan: "Plan",
    about: Mapping[str, Any],
    json: bool,
) -> None:
    """Write the corpus and tell what became of the records."""
    from addnorm.cli.output import write_json
    from addnorm.data.corpus_builder import gather

    shown = {split: _shown(records, split) for split, records in parts.items()}
    corpus = gather(out, task, parts=shown, counts=counts, plan=plan, about=about)
    report = counts.to_dict()
    _tell(out, task, report)
    if json:
        write_json({"folder": str(out), "task": task, "counts": corpus.counts, **report})


def _shown(records: "Iterable[Record]", split: str) -> "Iterator[Record]":
    """The records as they are, counted on a terminal, else with a line of talk a million."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        for number, record in enumerate(records, start=1):
            if number % EVERY == 0:
                print(f"addnorm: {split}: {number:,} records so far", file=sys.stderr)
            yield record
        return
    words = TextColumn("{task.description} {task.completed:,} records")
    with Progress(
        SpinnerColumn(), words, TimeElapsedColumn(), console=console, transient=True
    ) as progress:
        task = progress.add_task(split, total=None)
        for number, record in enumerate(records, start=1):
            if number % 1000 == 0:
                progress.update(task, completed=number)
            yield record


def _tell(out: Path, task: str, report: Mapping[str, Any]) -> None:
    """A small table on standard error."""
    lines = [("read", report["read"], "")]
    lines += [(f"kept, {split}", number, "") for split, number in report["kept"].items()]
    first = report["first"]
    lines += [
        (f"left out, {reason}", number, f"first: {first[reason]}" if reason in first else "")
        for reason, number in report["dropped"].items()
    ]
    lines += [(what, number, "") for what, number in report["notes"].items()]
    wide = max(len(name) for name, _, _ in lines)
    print(f"addnorm: a corpus for {task!r} in {out}", file=sys.stderr)
    for name, number, remark in lines:
        print(f"  {name:<{wide}} {number:>11,}  {remark}".rstrip(), file=sys.stderr)
