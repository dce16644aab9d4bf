"""`addnorm data`: write a corpus from text files, from tables, or a demo corpus."""

from pathlib import Path
from typing import Annotated

import typer

from addnorm.cli.corpus_options import (
    Column,
    Document,
    Errors,
    Force,
    Holdout,
    HoldoutOrFile,
    Json,
    Lines,
    Out,
    Paragraphs,
    Seed,
    ShardMegabytes,
    SourceFile,
    SourceLanguage,
    TargetFile,
    TargetLanguage,
    TaskName,
    TestSourceFile,
    TestTargetFile,
    TestTextFiles,
    TextFiles,
    Unique,
    ValidSourceFile,
    ValidTargetFile,
    ValidTextFiles,
    build_plan,
    check_output,
    choose_unit,
    describe_languages,
    write_corpus,
)

data = typer.Typer(help="Write a corpus to train on.")


@data.command()
def files(
    out: Out,
    source: SourceFile = None,
    target: TargetFile = None,
    valid_source: ValidSourceFile = None,
    valid_target: ValidTargetFile = None,
    test_source: TestSourceFile = None,
    test_target: TestTargetFile = None,
    text: TextFiles = None,
    valid_text: ValidTextFiles = None,
    test_text: TestTextFiles = None,
    document: Document = False,
    paragraphs: Paragraphs = False,
    lines: Lines = False,
    task: TaskName = None,
    source_lang: SourceLanguage = "",
    target_lang: TargetLanguage = "",
    valid: Holdout = None,
    test: Holdout = None,
    seed: Seed = 0,
    unique: Unique = False,
    shard_megabytes: ShardMegabytes = None,
    errors: Errors = "drop",
    force: Force = False,
    json: Json = False,
) -> None:
    """Read text files, plain, .gz or .xz: --source and --target for translation, or --text."""
    from addnorm.data.readers.text_files import read_splits
    from addnorm.data.record_counts import RecordCounts
    from addnorm.tasks import get_task

    pairs = {
        "train": (source, target),
        "valid": (valid_source, valid_target),
        "test": (test_source, test_target),
    }
    texts = {"train": text or [], "valid": valid_text or [], "test": test_text or []}
    counts = RecordCounts()
    check_output(out, force=force, errors=errors)
    unit = choose_unit(lines=lines, paragraphs=paragraphs, document=document)
    chosen = _choose_task(task, ("text",) if any(texts.values()) else ("source", "target"))
    if unit is None and any(texts.values()):
        unit = get_task(chosen).text_unit
    splits = read_splits(pairs, texts, unit=unit, errors=errors, counts=counts)
    paths = {split: list(map(str, pair)) for split, pair in pairs.items() if pair[0]}
    paths |= {split: list(map(str, files)) for split, files in texts.items() if files}
    about = {"source": "files", "files": paths, **describe_languages(source_lang, target_lang)}
    is_stream = unit == "document"
    plan = build_plan(
        splits,
        valid=valid,
        test=test,
        seed=seed,
        unique=unique,
        is_stream=is_stream,
        shard_megabytes=shard_megabytes,
    )
    write_corpus(out, chosen, splits=splits, counts=counts, plan=plan, about=about, json=json)


@data.command()
def columns(
    table: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|DIR", help="TSV, CSV, JSON lines, Parquet, or a folder of `datasets`"
        ),
    ],
    out: Out,
    source: Column = None,
    target: Column = None,
    text: Column = None,
    label: Column = None,
    task: TaskName = None,
    valid: HoldoutOrFile = None,
    test: HoldoutOrFile = None,
    header: Annotated[
        bool | None,
        typer.Option(
            help="Whether the first line names the columns; default: unless they are indices"
        ),
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", help="Table format: tsv, csv, jsonl, parquet or arrow")
    ] = None,
    source_lang: SourceLanguage = "",
    target_lang: TargetLanguage = "",
    seed: Seed = 0,
    unique: Unique = False,
    shard_megabytes: ShardMegabytes = None,
    errors: Errors = "drop",
    force: Force = False,
    json: Json = False,
) -> None:
    """Read columns of a table: --source and --target, --text, or --text and --label."""
    from addnorm.data.readers.columns import is_number, read_records, split_files
    from addnorm.data.record_counts import RecordCounts

    counts = RecordCounts()
    check_output(out, force=force, errors=errors)
    options = {"source": source, "target": target, "text": text, "label": label}
    selected = {column: name for column, name in options.items() if name is not None}
    chosen = _choose_task(task, tuple(selected))
    paths = split_files(table, {"valid": valid, "test": test})
    about = {
        "source": "columns",
        "files": {split: list(map(str, files)) for split, files in paths.items()},
        "columns": selected,
        **describe_languages(source_lang, target_lang),
    }
    splits = {
        split: read_records(
            files, selected, counts=counts, errors=errors, format=format, header=header
        )
        for split, files in paths.items()
    }
    valid, test = (size if size is None or is_number(size) else None for size in (valid, test))
    plan = build_plan(
        splits, valid=valid, test=test, seed=seed, unique=unique, shard_megabytes=shard_megabytes
    )
    write_corpus(out, chosen, splits=splits, counts=counts, plan=plan, about=about, json=json)


@data.command()
def demo(
    out: Out,
    task: Annotated[
        str, typer.Option("--task", help="Task; see `addnorm list tasks`")
    ] = "translate",
    source_lang: SourceLanguage = "en",
    target_lang: TargetLanguage = "de",
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Generate a demo corpus: dates and numbers, Python's documentation, or docstrings."""
    from addnorm.data.record_counts import RecordCounts
    from addnorm.tasks import get_task

    definition = get_task(task)
    check_output(out, force=force)
    splits, about = definition.make_demo(seed=seed, languages=(source_lang, target_lang))
    counts = RecordCounts()
    counts.add_read(sum(map(len, splits.values())))
    plan = build_plan(splits, seed=seed)
    write_corpus(out, task, splits=splits, counts=counts, plan=plan, about=about, json=json)


def _choose_task(task: str | None, columns: tuple[str, ...]) -> str:
    """Return the task of a corpus with these columns; `task` if that has them."""
    from addnorm.core.errors import UserError
    from addnorm.tasks import find_task, get_task

    if task is None:
        return find_task(columns)
    expected = get_task(task).columns
    if set(expected) != set(columns):
        raise UserError(
            f"--task {task}: expected {' and '.join(expected)}, got "
            f"{' and '.join(columns) or 'no columns'}"
        )
    return task
