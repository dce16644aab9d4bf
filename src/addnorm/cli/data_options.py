"""Options that the sub-commands of `addnorm data` share."""

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the corpus.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a corpus that is there.")]
Json = Annotated[bool, typer.Option("--json", help="The report as JSON on standard output.")]
Seed = Annotated[int, typer.Option("--seed", help="Another seed holds out other sentences.")]
Errors = Annotated[
    str, typer.Option("--errors", help="What becomes of invalid UTF-8: drop, replace or refuse.")
]
Unique = Annotated[bool, typer.Option("--unique", help="Leave out records that came before.")]
Holdout = Annotated[
    str | None,
    typer.Option(
        metavar="N|SHARE", help="Records to hold out; one in twenty, at most 2,000, if left out."
    ),
]
HoldoutOrFile = Annotated[
    str | None,
    typer.Option(metavar="FILE|N|SHARE", help="A table of its own, or records to hold out."),
]
File = Annotated[Path | None, typer.Option(metavar="FILE", help="Plain, .gz or .xz.")]
Column = Annotated[str | None, typer.Option(metavar="COLUMN", help="Its name, or 0, 1, ...")]
SourceLanguage = Annotated[
    str, typer.Option("--from", metavar="LANGUAGE", help="Language of the sources.")
]
TargetLanguage = Annotated[
    str, typer.Option("--to", metavar="LANGUAGE", help="Language of the targets.")
]
