"""Shared options of the sub-commands of `addnorm data`."""

from pathlib import Path
from typing import Annotated

import typer

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
Holdout = Annotated[
    str | None,
    typer.Option(
        metavar="N|FRACTION", help="Records to hold out; default one in twenty, at most 2,000"
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
TextFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Texts for training, one per line")
]
ValidTextFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Texts for validation")]
TestTextFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Texts for testing")]
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
