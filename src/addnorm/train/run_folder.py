"""Files of a run's folder, and the check that a folder belongs to a recipe.

run/
    config.yaml         the recipe
    arrangement.json    model config, stacks, corpus facts, versions
    tokenizer.json
    rows.jsonl          measurements, one row per line
    checkpoints/        see `checkpoint.py`
    report.html         written by `addnorm train` and `addnorm report`
"""

import json
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write
from addnorm.train.recipe import Recipe, read_recipe

CONFIG, ARRANGEMENT, TOKENIZER = "config.yaml", "arrangement.json", "tokenizer.json"
ROWS, CHECKPOINTS, REPORT = "rows.jsonl", "checkpoints", "report.html"

EXECUTION_KEYS = ("device", "parallel", "keep", "log_every", "tensorboard")
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
    if any((folder / CHECKPOINTS).glob("step-*")):
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


def read_config(folder: Path) -> Recipe:
    """Read the recipe of a run from `config.yaml`."""
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"no run at {folder}: it has no {CONFIG}; expected the -o folder of `addnorm train`"
        )
    return read_recipe(None, folder / CONFIG, ())


def write_arrangement(folder: Path, facts: dict[str, Any]) -> None:
    """Write `arrangement.json`."""
    with atomic_write(folder / ARRANGEMENT) as temporary:
        text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
        temporary.write_text(text, encoding="utf-8")


def read_arrangement(folder: Path) -> dict[str, Any]:
    """Read `arrangement.json`."""
    path = folder / ARRANGEMENT
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UserError(
            f"no run at {folder}: it has no {ARRANGEMENT}; expected the -o folder of "
            "`addnorm train`"
        ) from None
    except ValueError as problem:
        raise UserError(
            f"{path} is not JSON ({problem}); rerun the `addnorm train` command to rewrite it"
        ) from None
    if not isinstance(facts, dict):
        raise UserError(
            f"{path}: expected a JSON object, got {type(facts).__name__}; rerun the "
            "`addnorm train` command to rewrite it"
        )
    return facts
