"""Files of a run's folder, and the check that a folder belongs to a recipe.

run/
    config.yaml         the recipe
    arrangement.json    model config, stacks, corpus facts, versions, mark of rows.jsonl
    tokenizer.json
    rows.jsonl          measurements, one row per line
    checkpoints/        see `checkpoint.py`
    .start/             the model that training starts from, with the recipe key `start`
    report.html         written by `addnorm train` and `addnorm report`
"""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import read_json, write_json
from addnorm.core.rows import Row, RowsMark, read_rows
from addnorm.core.validation import parse_dataclass
from addnorm.train import checkpoint as checkpoints
from addnorm.train.recipe import Recipe, read_recipe
from addnorm.train.train_state import TrainState

CONFIG, ARRANGEMENT, TOKENIZER = "config.yaml", "arrangement.json", "tokenizer.json"
ROWS, CHECKPOINTS, REPORT = "rows.jsonl", "checkpoints", "report.html"
START = ".start"
"""Model that a run with the recipe key `start` begins with, written before its first step."""
MARK = "rows"
"""Key of `arrangement.json`: length and checksum of `rows.jsonl` when the run last stopped."""

EXECUTION_KEYS = (
    "device",
    "parallel",
    "tensor_parallel",
    "checkpoints",
    "keep",
    "log_every",
    "tensorboard",
)
"""Recipe keys that may change when a run is resumed, because the weights do not depend on them."""


def claim_run_folder(folder: Path, recipe: Recipe) -> bool:
    """Store the recipe in a new folder, or check that the folder holds a run of the same recipe.

    A run without a checkpoint is replaced, so that a failed start can be corrected.

    Returns:
        Whether the folder holds a run of this recipe already.

    Raises:
        UserError: the folder contains other files, or a run of another recipe
    """
    if not (folder / CONFIG).exists():
        foreign = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        if foreign:
            raise UserError(
                f"expected a new or empty folder for -o, got {folder}, which contains "
                f"{', '.join(foreign[:3])}, ... and no run"
            )
        recipe.save(folder / CONFIG)
        return False
    stored, requested = read_config(folder).to_flat_dict(), recipe.to_flat_dict()
    different = [
        name
        for name in requested
        if name not in EXECUTION_KEYS and requested[name] != stored.get(name)
    ]
    different += [name for name in stored if name not in requested]
    if not different:
        return True
    if has_checkpoint(folder):
        changes = ", ".join(
            f"{name}={stored.get(name)} (now {requested.get(name)})" for name in different[:4]
        )
        raise UserError(
            f"{folder} contains another run, with {changes}; choose another -o, or pass the same "
            "keys to resume it"
        )
    for name in (TOKENIZER, ARRANGEMENT, ROWS):
        (folder / name).unlink(missing_ok=True)
    recipe.save(folder / CONFIG)
    return False


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run has a checkpoint, valid or not."""
    return any((folder / CHECKPOINTS).glob("step-*"))


def read_config(folder: Path) -> Recipe:
    """Read the recipe of a run from `config.yaml`."""
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"no run at {folder}: it has no {CONFIG}; expected the -o folder of `addnorm train`"
        )
    return read_recipe(None, folder / CONFIG, (), verify=True)


def write_arrangement(folder: Path, facts: dict[str, Any], mark: RowsMark) -> None:
    """Write `arrangement.json` with the mark of `rows.jsonl`."""
    write_json(folder / ARRANGEMENT, facts | {MARK: asdict(mark)})


def read_arrangement(folder: Path) -> dict[str, Any]:
    """Read `arrangement.json`."""
    path, hint = folder / ARRANGEMENT, "rerun the `addnorm train` command to rewrite it"
    facts = read_json(path, hint=hint)
    if facts is None:
        raise UserError(
            f"no run at {folder}: it has no {ARRANGEMENT}; expected the -o folder of "
            "`addnorm train`"
        )
    if not isinstance(facts, dict):
        raise UserError(f"{path}: expected a JSON object, got {type(facts).__name__}; {hint}")
    return facts


def read_run_rows(folder: Path) -> Iterator[Row]:
    """Return the rows of a run, none if it has not started.

    Raises:
        UserError: rows are missing or changed that the run had when it stopped, or at a checkpoint
    """
    path = folder / ROWS
    for mark in _iter_marks(folder):
        mark.check(path)
    return read_rows(path) if path.exists() else iter(())


def _iter_marks(folder: Path) -> Iterator[RowsMark]:
    """Yield the stored marks of a run's rows."""
    if (folder / ARRANGEMENT).is_file():
        mark = read_arrangement(folder).get(MARK)
        if mark is not None:
            yield parse_dataclass(RowsMark, mark, f"{folder / ARRANGEMENT}: {MARK}")
    for step in checkpoints.list_steps(folder / CHECKPOINTS):
        if state := checkpoints.read_state(folder / CHECKPOINTS, step):
            yield TrainState.from_dict(state.get("progress", {})).rows_mark
            return
