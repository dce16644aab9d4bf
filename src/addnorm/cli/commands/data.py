"""`addnorm data`: corpora out of files, tables, or out of nothing."""

from pathlib import Path
from typing import Annotated

import typer

from addnorm.cli.corpus_options import build_plan, check_output, describe_languages, write_corpus
from addnorm.cli.data_options import (
    Column,
    Errors,
    File,
    Force,
    Holdout,
    HoldoutOrFile,
    Json,
    Out,
    Seed,
    SourceLanguage,
    TargetLanguage,
    Unique,
)

data = typer.Typer(help="Make a corpus to train on.")


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
    source: SourceLanguage = "",
    target: TargetLanguage = "",
    valid: Holdout = None,
    test: Holdout = None,
    seed: Seed = 0,
    unique: Unique = False,
    errors: Errors = "drop",
    force: Force = False,
    json: Json = False,
) -> None:
    """Plain text: --src and --tgt for translation, --text for a language model."""
    from addnorm.data.readers.text_files import read_splits
    from addnorm.data.record_counts import RecordCounts

    sides = {"train": (src, tgt), "valid": (valid_src, valid_tgt), "test": (test_src, test_tgt)}
    texts = {"train": text, "valid": valid_text, "test": test_text}
    counts = RecordCounts()
    check_output(out, force=force, errors=errors)
    task, parts = read_splits(sides, texts, paragraphs=paragraphs, errors=errors, counts=counts)
    named = {split: list(map(str, pair)) for split, pair in sides.items() if pair[0]}
    named |= {split: [str(path)] for split, path in texts.items() if path}
    about = {"source": "files", "files": named, **describe_languages(source, target)}
    plan = build_plan(parts, valid=valid, test=test, seed=seed, unique=unique)
    write_corpus(out, task, splits=parts, counts=counts, plan=plan, about=about, json=json)


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
    valid: HoldoutOrFile = None,
    test: HoldoutOrFile = None,
    header: Annotated[
        bool | None,
        typer.Option(help="Whether the first line names the columns; not if they are numbers."),
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="tsv, csv, jsonl, parquet or arrow.")
    ] = None,
    origin: SourceLanguage = "",
    goal: TargetLanguage = "",
    seed: Seed = 0,
    unique: Unique = False,
    errors: Errors = "drop",
    force: Force = False,
    json: Json = False,
) -> None:
    """Columns of a table: --source and --target, --text, or --text and --label."""
    from addnorm.data.readers.columns import infer_task, is_number, read_records, split_files
    from addnorm.data.record_counts import RecordCounts

    counts = RecordCounts()
    check_output(out, force=force, errors=errors)
    chosen = {"source": source, "target": target, "text": text, "label": label}
    task, wanted = infer_task(chosen)
    paths = split_files(table, {"valid": valid, "test": test})
    about = {
        "source": "columns",
        "files": {split: list(map(str, files)) for split, files in paths.items()},
        "columns": wanted,
        **describe_languages(origin, goal),
    }
    parts = {
        split: read_records(
            files, wanted, counts=counts, errors=errors, format=format, header=header
        )
        for split, files in paths.items()
    }
    sizes = {"valid": valid, "test": test}
    sizes = {split: size for split, size in sizes.items() if size is None or is_number(size)}
    plan = build_plan(parts, **sizes, seed=seed, unique=unique)
    write_corpus(out, task, splits=parts, counts=counts, plan=plan, about=about, json=json)


@data.command()
def demo(
    out: Out,
    task: Annotated[str, typer.Option("--task", help="translate, lm or classify.")] = "translate",
    source: SourceLanguage = "en",
    target: TargetLanguage = "de",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """A corpus out of what is installed: dates and numbers, Python's documentation, docstrings."""
    from addnorm.core.errors import UserError, unknown_name_message
    from addnorm.data.corpus import TASKS
    from addnorm.data.demo import make_demo
    from addnorm.data.record_counts import RecordCounts

    if task not in TASKS:
        raise UserError(unknown_name_message("task", task, TASKS))
    check_output(out, force=force)
    splits, about = make_demo(task, seed=seed, languages=(source, target))
    counts = RecordCounts()
    counts.add_read(sum(map(len, splits.values())))
    plan = build_plan(splits, seed=seed)
    write_corpus(out, task, splits=splits, counts=counts, plan=plan, about=about, json=json)
