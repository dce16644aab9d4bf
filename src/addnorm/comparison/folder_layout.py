"""Names of the files and folders in the folder of a comparison."""

from pathlib import Path

SPEC, FACTS, RESULT, REPORT = "comparison.yaml", "facts.json", "result.json", "report.html"
DATA, SCORE, CELLS, TOKENIZER = "data", "score", "cells", "tokenizer.json"
SLURM = "slurm"


def is_comparison(folder: Path) -> bool:
    """Return whether a folder contains a comparison."""
    return (folder / SPEC).is_file()
