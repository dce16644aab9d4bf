"""`addnorm data`: corpora out of files, tables, catalogues, help pages, or out of nothing."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from addnorm.data.corpus import Record
    from addnorm.data.counts import Counts
    from addnorm.data.gather import Plan

EVERY = 1_000_000  # records between two lines of talk where there is no terminal

data = typer.Typer(help="Make a corpus to train on.")

Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the corpus.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a corpus that is there.")]
Json = Annotated[bool, typer.Option("--json", help="The report as JSON on standard output.")]
Seed = Annotated[int, typer.Option("--seed", help="Another seed holds out other sentences.")]
Errors = Annotated[
    str, typer.Option("--errors", help="What becomes of invalid UTF-8: drop, replace or refuse.")
]
Unique = Annotated[bool, typer.Option("--unique", help="Leave out records that came before.")]
Held = Annotated[
    str | None,
    typer.Option(
        metavar="N|SHARE", help="Records to hold out; one in twenty, at most 2,000, if left out."
    ),
]
HeldOrFile = Annotated[
    str | None,
    typer.Option(metavar="FILE|N|SHARE", help="A table of its own, or records to hold out."),
]
File = Annotated[Path | None, typer.Option(metavar="FILE", help="Plain, .gz or .xz.")]
Column = Annotated[str | None, typer.Option(metavar="COLUMN", help="Its name, or 0, 1, ...")]
From = Annotated[str, typer.Option("--from", metavar="LANGUAGE", help="Language of the sources.")]
To = Annotated[str, typer.Option("--to", metavar="LANGUAGE", help="Language of the targets.")]
Placeholders = Annotated[
    str,
    typer.Option(
        "--placeholders", help="Pairs with %s, {name}, tags or paths: drop, mask or keep."
    ),
]
Duplicates = Annotated[
    str,
    typer.Option("--duplicates", help="Keep one pair of a source, one of each pair, or keep all."),
]
Ratio = Annotated[
    float, typer.Option("--ratio", help="How many times longer one side may be, in characters.")
]
MinWords = Annotated[int, typer.Option("--min-words", min=0, help="Words a pair has at least.")]
MaxWords = Annotated[int, typer.Option("--max-words", min=1, help="Words a side has at most.")]


@data.command()
def files(
    out: Out,
    src: File = None,
    tgt: File = None,
    valid_src: File = None,
    valid_tgt: File = None,
    test_src: File = None,
    test_tgt: File = None,
    text: File = None,
    valid_text: File = None,
    test_text: File = None,
    paragraphs: Annotated[
        bool, typer.Option("--paragraphs", help="A text ends at a blank line, not at every line.")
    ] = False,
    source: From = "",
    target: To = "",
    valid: Held = None,
    test: Held = None,
    seed: Seed = 0,
    unique: Unique = False,
    errors: Errors = "drop",
    force: Force = False,
    json: Json = False,
) -> None:
    """Plain text: --src and --tgt for translation, --text for a language model."""
    from addnorm.data.counts import Counts
    from addnorm.data.lines import file_parts

    sides = {"train": (src, tgt), "valid": (valid_src, valid_tgt), "test": (test_src, test_tgt)}
    texts = {"train": text, "valid": valid_text, "test": test_text}
    counts = Counts()
    _check(out, force=force, errors=errors)
    task, parts = file_parts(sides, texts, paragraphs=paragraphs, errors=errors, counts=counts)
    named = {split: list(map(str, pair)) for split, pair in sides.items() if pair[0]}
    named |= {split: [str(path)] for split, path in texts.items() if path}
    about = {"source": "files", "files": named, **_languages(source, target)}
    plan = _plan(parts, valid=valid, test=test, seed=seed, unique=unique)
    _make(out, task, parts=parts, counts=counts, plan=plan, about=about, json=json)


@data.command()
def columns(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|DIR", help="TSV, CSV, JSON lines, Parquet, or a folder of `datasets`."
        ),
    ],
    out: Out,
    source: Column = None,
    target: Column = None,
    text: Column = None,
    label: Column = None,
    valid: HeldOrFile = None,
    test: HeldOrFile = None,
    header: Annotated[
        bool | None,
        typer.Option(help="Whether the first line names the columns; not if they are numbers."),
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="tsv, csv, jsonl, parquet or arrow.")
    ] = None,
    origin: From = "",
    goal: To = "",
    seed: Seed = 0,
    unique: Unique = False,
    errors: Errors = "drop",
    force: Force = False,
    json: Json = False,
) -> None:
    """Columns of a table: --source and --target, --text, or --text and --label."""
    from addnorm.data.columns import column_parts, is_number, records, task_of
    from addnorm.data.counts import Counts

    counts = Counts()
    _check(out, force=force, errors=errors)
    chosen = {"source": source, "target": target, "text": text, "label": label}
    task, wanted = task_of(chosen)
    paths = column_parts(table, {"valid": valid, "test": test})
    about = {
        "source": "columns",
        "files": {split: list(map(str, files)) for split, files in paths.items()},
        "columns": wanted,
        **_languages(origin, goal),
    }
    parts = {
        split: records(files, wanted, counts=counts, errors=errors, format=format, header=header)
        for split, files in paths.items()
    }
    sizes = {"valid": valid, "test": test}
    sizes = {split: size for split, size in sizes.items() if size is None or is_number(size)}
    plan = _plan(parts, **sizes, seed=seed, unique=unique)
    _make(out, task, parts=parts, counts=counts, plan=plan, about=about, json=json)


@data.command()
def gettext(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders with .mo or .po files below.")
    ],
    out: Out,
    source: From = "en",
    target: To = "de",
    placeholders: Placeholders = "drop",
    duplicates: Duplicates = "source",
    ratio: Ratio = 4.0,
    min_words: MinWords = 1,
    max_words: MaxWords = 100,
    valid: Held = None,
    test: Held = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Translations of programs: all gettext catalogues below folders, cleaned."""
    from addnorm.data.clean import Cleaner, Rules
    from addnorm.data.counts import Counts
    from addnorm.data.harvest import harvest

    counts = Counts()
    _check(out, force=force)
    rules = Rules(placeholders, duplicates, ratio, min_words=min_words, max_words=max_words)
    pairs = harvest(folders, source=source, target=target, cleaner=Cleaner(rules, counts))
    about = {"source": "gettext", "folders": list(map(str, folders))}
    about |= _languages(source, target)
    plan = _plan({}, valid=valid, test=test, seed=seed)
    _make(
        out, "translate", parts={"train": pairs}, counts=counts, plan=plan, about=about, json=json
    )


@data.command()
def libreoffice(
    source_dir: Annotated[Path, typer.Argument(metavar="SOURCE_DIR", help="The help in one.")],
    target_dir: Annotated[Path, typer.Argument(metavar="TARGET_DIR", help="And the other.")],
    out: Out,
    source: From = "en-US",
    target: To = "de",
    placeholders: Placeholders = "keep",
    duplicates: Duplicates = "pair",
    ratio: Ratio = 4.0,
    min_words: MinWords = 1,
    max_words: MaxWords = 100,
    valid: Held = None,
    test: Held = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """LibreOffice's help in two languages, aligned by paragraph.

    The folders are what two packages libreoffice-help-* unpack to.
    """
    from dataclasses import replace

    from addnorm.data.clean import Cleaner, Rules
    from addnorm.data.counts import Counts
    from addnorm.data.libreoffice import align

    counts = Counts()
    _check(out, force=force)
    rules = Rules(placeholders, duplicates, ratio, min_words=min_words, max_words=max_words)
    cleaner = Cleaner(replace(rules, shortcuts=False), counts)  # help is no menu
    pairs = align(source_dir, target_dir, languages=(source, target), cleaner=cleaner)
    about = {"source": "libreoffice", "folders": [str(source_dir), str(target_dir)]}
    about |= _languages(source, target)
    plan = _plan({}, valid=valid, test=test, seed=seed)
    _make(
        out, "translate", parts={"train": pairs}, counts=counts, plan=plan, about=about, json=json
    )


@data.command()
def demo(
    out: Out,
    task: Annotated[str, typer.Option("--task", help="translate, lm or classify.")] = "translate",
    source: From = "en",
    target: To = "de",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """A corpus out of what is installed: dates and numbers, Python's documentation, docstrings."""
    from addnorm.core.errors import UserError, unknown
    from addnorm.data.corpus import TASKS
    from addnorm.data.counts import Counts
    from addnorm.data.demo import make_demo

    if task not in TASKS:
        raise UserError(unknown("task", task, TASKS))
    _check(out, force=force)
    splits, about = make_demo(task, seed=seed, languages=(source, target))
    counts = Counts()
    counts.saw(sum(map(len, splits.values())))
    plan = _plan(splits, seed=seed)
    _make(out, task, parts=splits, counts=counts, plan=plan, about=about, json=json)


def _check(out: Path, *, force: bool, errors: str = "drop") -> None:
    """What can be refused before anything is read."""
    from addnorm.core.errors import UserError, unknown
    from addnorm.data.gather import check_out
    from addnorm.data.sources import ERRORS

    if errors not in ERRORS:
        raise UserError(unknown("--errors", errors, ERRORS))
    check_out(out, force=force)


def _languages(source: str, target: str) -> dict[str, list[str]]:
    return {"languages": [source, target]} if source and target else {}


def _plan(
    parts: Mapping[str, Any],
    *,
    valid: str | None = None,
    test: str | None = None,
    seed: int,
    unique: bool = False,
) -> "Plan":
    from addnorm.core.errors import UserError
    from addnorm.data.gather import Plan
    from addnorm.data.split import Size

    for split, size in (("valid", valid), ("test", test)):
        if split in parts and size is not None:
            raise UserError(f"got --{split} {size} and a file for it; wanted one of them")
    sizes = {"valid": Size.parse(valid, "--valid"), "test": Size.parse(test, "--test")}
    return Plan(**sizes, seed=seed, unique=unique)


def _make(
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
    from addnorm.data.gather import gather

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
    lines += [
        (what, number, f"first: {first[what]}" if what in first else "")
        for what, number in report["notes"].items()
    ]
    wide = max(len(name) for name, _, _ in lines)
    print(f"addnorm: a corpus for {task!r} in {out}", file=sys.stderr)
    for name, number, remark in lines:
        print(f"  {name:<{wide}} {number:>11,}  {remark}".rstrip(), file=sys.stderr)
