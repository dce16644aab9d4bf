"""Names of the files and folders in the folder of a comparison."""

import json
import math
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write

SPEC, FACTS, RESULT, REPORT = "comparison.yaml", "facts.json", "result.json", "report.html"
DATA, SCORE, CELLS, TOKENIZER = "data", "score", "cells", "tokenizer.json"


def is_comparison(folder: Path) -> bool:
    """Return whether a folder contains a comparison."""
    return (folder / SPEC).is_file()


def write_json(path: Path, data: Any) -> None:
    """Write plain data atomically; numbers that are not finite become null."""
    with atomic_write(path) as name:
        text = json.dumps(replace_nonfinite(data), indent=2, ensure_ascii=False, allow_nan=False)
        name.write_text(text + "\n", encoding="utf-8")


def replace_nonfinite(value: Any) -> Any:
    """Return plain data with None in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {name: replace_nonfinite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> Any:
    """Read a JSON file; return None if it does not exist."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(
            f"{path} is not JSON ({error}); remove it and rerun the same `addnorm compare` command"
        ) from None
