"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

ChunkLines = Annotated[
    int | None,
    typer.Option(
        "--chunk-lines", help="Lines read before the first output; default 512, 1 on a terminal"
    ),
]
Scores = Annotated[
    bool, typer.Option("--scores", help="Print the log-probability and a tab before each text")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line")]
Attention = Annotated[
    Path | None,
    typer.Option("--attention", metavar="FILE.html", help="Write attention maps to this HTML file"),
]
Device = Annotated[str, typer.Option("--device", help="Device: auto, cpu, cuda or mps")]
Average = Annotated[
    int | None,
    typer.Option(
        "--average", metavar="N", help="Average the weights of the last N checkpoints of the run"
    ),
]
SafeCsv = Annotated[
    bool,
    typer.Option(
        "--safe-csv", help="Put ' before texts in CSV that a spreadsheet would run as a formula"
    ),
]
