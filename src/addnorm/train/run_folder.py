"""The folder of a run: whose it is, what stands in it, and who may write there."""

import json
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write
from addnorm.train.recipe import Recipe, read_recipe

CONFIG, ARRANGEMENT, TOKENIZER = "config.yaml", "arrangement.json", "tokenizer.json"
ROWS, CHECKPOINTS, REPORT = "rows.jsonl", "checkpoints", "report.html"

# Keys that change how a run is carried out, not what comes out of it.
EXECUTION_KEYS = ("device", "parallel", "keep", "log_every", "tensorboard")


def claim_run_folder(folder: Path, recipe: Recipe) -> bool:
    """Make the folder that of a recipe; whether the run was there already. Refuses another run."""
    if not (folder / CONFIG).exists():
        strangers = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        if strangers:
            raise UserError(
                f"{folder} holds other things ({', '.join(sorted(strangers)[:3])}, ...) and no "
                "run; wanted a new or empty folder for -o"
            )
        recipe.save(folder / CONFIG)
        return False
    theirs, ours = read_config(folder).to_flat_dict(), recipe.to_flat_dict()
    other = [name for name in ours if name not in EXECUTION_KEYS and ours[name] != theirs.get(name)]
    other += [name for name in theirs if name not in ours]
    if other and not any((folder / CHECKPOINTS).glob("step-*")):
        for name in (TOKENIZER, ARRANGEMENT, ROWS):  # nothing was trained yet: begin as told now
            (folder / name).unlink(missing_ok=True)
        recipe.save(folder / CONFIG)
        return False
    if other:
        told = ", ".join(f"{name}={theirs.get(name)} (now {ours.get(name)})" for name in other[:4])
        raise UserError(
            f"{folder} holds another run, with {told}; choose another -o, or give the same keys "
            "to go on with it"
        )
    return True


def read_config(folder: Path) -> Recipe:
    """The recipe of a run, from `config.yaml`."""
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"no run at {folder}: it has no {CONFIG}; wanted the -o folder of `addnorm train`"
        )
    return read_recipe(None, folder / CONFIG, ())


def write_arrangement(folder: Path, facts: dict[str, Any]) -> None:
    """Write `arrangement.json`."""
    with atomic_write(folder / ARRANGEMENT) as name:
        name.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_arrangement(folder: Path) -> dict[str, Any]:
    """Read `arrangement.json`."""
    try:
        facts = json.loads((folder / ARRANGEMENT).read_text(encoding="utf-8"))
    except OSError:
        raise UserError(
            f"no run at {folder}: it has no {ARRANGEMENT}; wanted the -o folder of `addnorm train`"
        ) from None
    except ValueError as problem:
        raise UserError(
            f"{folder / ARRANGEMENT} is not JSON ({problem}); give the command of `addnorm train` "
            "again, which writes it anew"
        ) from None
    if not isinstance(facts, dict):
        raise UserError(
            f"{folder / ARRANGEMENT} holds {type(facts).__name__}, wanted an object; give the "
            "command of `addnorm train` again, which writes it anew"
        )
    return facts
