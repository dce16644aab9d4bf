"""The folder of a comparison: what stands in it, whose it is, and who may write there."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from addnorm.comparison.spec import Comparison, read_spec
from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write, folder_lock

SPEC, FACTS, RESULT, REPORT = "comparison.yaml", "facts.json", "result.json", "report.html"
DATA, SCORE, CELLS, TOKENIZER = "data", "score", "cells", "tokenizer.json"


@contextmanager
def claim_folder(folder: Path, spec: Comparison) -> Iterator[None]:
    """The folder is that of this spec, and nobody else works in it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; wanted a new or empty folder for -o")
    _reject_foreign_files(folder)
    with folder_lock(folder, activity="comparing"):
        if (folder / FACTS).exists():
            _reject_other_comparison(folder, spec)
        else:  # nothing was prepared yet: begin as told now
            with atomic_write(folder / SPEC) as name:
                name.write_text(spec.to_yaml(), encoding="utf-8")
        yield


def read_comparison(folder: Path) -> Comparison:
    """The spec of a folder."""
    if not (folder / SPEC).is_file():
        raise UserError(
            f"no comparison at {folder}: it has no {SPEC}; wanted the -o folder of "
            "`addnorm compare`"
        )
    try:
        return Comparison.of(read_spec(folder / SPEC))
    except UserError as problem:
        raise UserError(f"{folder / SPEC} is damaged: {problem}; begin anew elsewhere") from None


def is_comparison(folder: Path) -> bool:
    """Whether a folder is that of a comparison."""
    return (folder / SPEC).is_file()


def _reject_foreign_files(folder: Path) -> None:
    if not folder.is_dir() or (folder / SPEC).exists():
        return
    strangers = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if strangers:
        raise UserError(
            f"{folder} holds other things ({', '.join(strangers[:3])}, ...) and no comparison; "
            "wanted a new or empty folder for -o"
        )


def _reject_other_comparison(folder: Path, spec: Comparison) -> None:
    theirs, ours = read_comparison(folder), spec
    if theirs == ours:
        return
    was, now = theirs.to_flat_dict(), ours.to_flat_dict()
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    told = "; ".join(
        f"{name} was {_format_value(was, name)}, now {_format_value(now, name)}" for name in names
    )
    raise UserError(
        f"{folder} holds another comparison: {told}; choose another -o, or give the same command "
        "to go on with it"
    )


def _format_value(values: dict[str, Any], name: str) -> str:
    if name not in values:
        return "left out"
    text = json.dumps(values[name], ensure_ascii=False)
    return text if len(text) <= 120 else text[:117] + "..."
