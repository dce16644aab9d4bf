"""Options that the commands which answer lines share."""

from pathlib import Path
from typing import Annotated

import typer

Chunk = Annotated[
    int | None,
    typer.Option("--chunk", help="Lines read before answering; 512, or 1 if they are typed."),
]
Scores = Annotated[
    bool, typer.Option("--scores", help="The log-probability and a tab before each text.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Attention = Annotated[
    Path | None,
    typer.Option("--attention", metavar="FILE.html", help="Draw who looked where, as a page."),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, mps.")]
