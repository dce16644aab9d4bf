"""Options of `addnorm data`, and the construction of a corpus from them."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from addnorm.data.corpus import Record
    from addnorm.data.corpus_builder import SplitPlan
    from addnorm.data.readers.text_files import TextUnit
    from addnorm.data.record_counts import RecordCounts

PROGRESS_INTERVAL_RECORDS = 1_000_000
"""Records between two progress lines without a terminal."""

Out = Annotated[
    Path, typer.Option("--out", "-o", metavar="DIR", help="Output folder of the corpus")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing corpus")]
Json = Annotated[bool, typer.Option("--json", help="Print the counts as JSON")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of the train/valid/test split")]
Errors = Annotated[
    str, typer.Option("--errors", help="Handling of invalid UTF-8: drop, replace or strict")
]
Unique = Annotated[bool, typer.Option("--unique", help="Drop repeated records")]
ShardMegabytes = Annotated[
    int | None,
    typer.Option(
        "--shard-megabytes",
        metavar="N",
        min=1,
        help="Divide each split into files of N megabytes; default one file",
    ),
]
Holdout = Annotated[
    str | None,
    typer.Option(
        metavar="N|FRACTION",
        help="Records to hold out; default one in twenty, at most 2,000. With --document, the last "
        "characters; default one in twenty",
    ),
]
HoldoutOrFile = Annotated[
    str | None,
    typer.Option(metavar="FILE|N|FRACTION", help="A separate table, or records to hold out"),
]
SourceFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Source sentences for training, one per line")
]
TargetFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Their translations, line by line")
]
ValidSourceFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Source sentences for validation")
]
ValidTargetFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Translations for validation")
]
TestSourceFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Source sentences for testing")
]
TestTargetFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Translations for testing")
]
TextFiles = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Text for training; repeat for several files"),
]
ValidTextFiles = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Text for validation")
]
TestTextFiles = Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Text for testing")]
Lines = Annotated[
    bool, typer.Option("--lines", help="Each line is a text; blank ones are dropped (default: mlm)")
]
Paragraphs = Annotated[
    bool, typer.Option("--paragraphs", help="A text ends at a blank line, not at each line")
]
Document = Annotated[
    bool,
    typer.Option("--document", help="Each file is a text, with all its lines (default: lm)"),
]
Column = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column name or index")]
SourceLanguage = Annotated[
    str, typer.Option("--source-lang", metavar="LANGUAGE", help="Language of the sources")
]
TargetLanguage = Annotated[
    str, typer.Option("--target-lang", metavar="LANGUAGE", help="Language of the targets")
]
TaskName = Annotated[
    str | None,
    typer.Option("--task", help="Task of the corpus; default: the first one with these columns"),
]


def check_output(out: Path, *, force: bool, errors: str = "drop") -> None:
    """Raise UserError for an invalid output folder or option, before any input is read."""
    from addnorm.core.errors import UserError, unknown_name_message
    from addnorm.data.corpus_builder import check_output_folder
    from addnorm.data.readers.text_lines import ERROR_MODES

    if errors not in ERROR_MODES:
        raise UserError(unknown_name_message("--errors", errors, ERROR_MODES))
    check_output_folder(out, force=force)


def describe_languages(source: str, target: str) -> dict[str, list[str]]:
    """Return the languages for the card; empty unless both are known."""
    return {"languages": [source, target]} if source and target else {}


def build_plan(
    splits: Mapping[str, Any],
    *,
    valid: str | None = None,
    test: str | None = None,
    seed: int,
    unique: bool = False,
    is_stream: bool = False,
    shard_megabytes: int | None = None,
) -> "SplitPlan":
    """Return the sizes of the splits that have no file of their own."""
    from addnorm.core.errors import UserError
    from addnorm.data.corpus_builder import SplitPlan
    from addnorm.data.splitting import HoldoutSize

    for split, size in (("valid", valid), ("test", test)):
        if split in splits and size is not None:
            raise UserError(
                f"--{split}: expected a size or a file, got both ({size}); leave one out"
            )
    sizes = {
        "valid": HoldoutSize.parse(valid, "--valid"),
        "test": HoldoutSize.parse(test, "--test"),
    }
    if unique and is_stream:
        raise UserError(
            "--unique: expected with separate texts, got it with --document; leave it out, or use "
            "--lines or --paragraphs"
        )
    shard_bytes = None if shard_megabytes is None else shard_megabytes * 2**20
    return SplitPlan(
        **sizes, seed=seed, unique=unique, is_stream=is_stream, shard_bytes=shard_bytes
    )


def choose_unit(*, lines: bool, paragraphs: bool, document: bool) -> "TextUnit | None":
    """Return the unit of --lines, --paragraphs or --document; None without any of them."""
    from addnorm.core.errors import UserError
    from addnorm.data.readers.text_files import UNIT_OPTIONS

    flags: dict[TextUnit, bool] = {"line": lines, "paragraph": paragraphs, "document": document}
    chosen = [unit for unit, is_set in flags.items() if is_set]
    if len(chosen) > 1:
        options = " and ".join(UNIT_OPTIONS[unit] for unit in chosen)
        raise UserError(f"expected --lines, --paragraphs or --document, got {options}; keep one")
    return chosen[0] if chosen else None


def write_corpus(
    out: Path,
    task: str,
    *,
    splits: "Mapping[str, Iterable[Record]]",
    counts: "RecordCounts",
    plan: "SplitPlan",
    about: Mapping[str, Any],
    json: bool,
) -> None:
    """Write the corpus and print the counts of its records."""
    from addnorm.cli.output import write_json
    from addnorm.data.corpus_builder import build_corpus

    shown = {split: _track_progress(records, split) for split, records in splits.items()}
    with _lock_output(out):
        corpus = build_corpus(
            out, task, records_by_split=shown, counts=counts, plan=plan, about=about
        )
    report = counts.to_dict()
    _print_summary(out, task, report)
    if json:
        write_json({"folder": str(out), "task": task, "counts": corpus.counts, **report})


@contextmanager
def _lock_output(out: Path) -> "Iterator[None]":
    """Hold the lock of the output folder; a folder that stays empty is removed.

    A failed write names the folder if it does not name a file.
    """
    from addnorm.core.locks import folder_lock

    try:
        with folder_lock(out, activity="writing a corpus"):
            yield
    except OSError as problem:
        problem.filename = problem.filename or str(out)
        raise
    finally:
        if out.is_dir() and not any(out.iterdir()):
            out.rmdir()


def _track_progress(records: "Iterable[Record]", split: str) -> "Iterator[Record]":
    """Yield the records while showing their count on standard error."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        for number, record in enumerate(records, start=1):
            if number % PROGRESS_INTERVAL_RECORDS == 0:
                print(f"addnorm: {split}: {number:,} records so far", file=sys.stderr)
            yield record
        return
    description = TextColumn("{task.description} {task.completed:,} records")
    with Progress(
        SpinnerColumn(), description, TimeElapsedColumn(), console=console, transient=True
    ) as progress:
        task = progress.add_task(split, total=None)
        for number, record in enumerate(records, start=1):
            if number % 1000 == 0:
                progress.update(task, completed=number)
            yield record


def _print_summary(out: Path, task: str, report: Mapping[str, Any]) -> None:
    """Print a table of the counts to standard error."""
    lines = [("read", report["read"], "")]
    lines += [(f"kept, {split}", number, "") for split, number in report["kept"].items()]
    first = report["first"]
    lines += [
        (f"left out, {reason}", number, f"first: {first[reason]}" if reason in first else "")
        for reason, number in report["dropped"].items()
    ]
    lines += [(note, number, "") for note, number in report["notes"].items()]
    width = max(len(name) for name, _, _ in lines)
    print(f"addnorm: a corpus for {task!r} in {out}", file=sys.stderr)
    for name, number, remark in lines:
        print(f"  {name:<{width}} {number:>11,}  {remark}".rstrip(), file=sys.stderr)
