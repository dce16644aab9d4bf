"""A run that was trained, opened for use."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import Tokenizer
from addnorm.models import Config, Model, build
from addnorm.train import checkpoint as checkpoints
from addnorm.train import run_folder as files
from addnorm.train.checkpoint import Checkpoint
from addnorm.train.device import pick_device
from addnorm.train.recipe import Recipe


@dataclass(frozen=True)
class TrainedRun:
    """The folder of a run, with the model ready to answer."""

    folder: Path
    recipe: Recipe
    model: Model
    """Its best checkpoint, with the average of the weights where there is one; in eval mode."""
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    """Classes in the order of their numbers (classify)."""
    step: int
    """The step of the checkpoint."""
    device: torch.device
    is_best: bool = True
    """Whether that is the best checkpoint; False if one had to be passed over, being damaged."""

    @property
    def task(self) -> str:
        """translate, lm or classify."""
        return self.recipe.task

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        task: str | None = None,
        device: str = "auto",
        which: Literal["best", "last"] = "best",
    ) -> "TrainedRun":
        """Read a run; refuses one of another task, if that is given. which: of its checkpoints."""
        folder = Path(folder)
        recipe = files.read_config(folder)
        if task is not None and recipe.task != task:
            raise UserError(
                f"{folder} is a run of {recipe.task!r}, wanted one of {task!r}; choose another run"
            )
        found, best = find_checkpoint(folder, which)
        facts = files.read_arrangement(folder)
        tokenizer = Tokenizer.load(folder / files.TOKENIZER)
        if found.state["tokenizer"] != tokenizer.digest:
            raise UserError(
                f"{folder / files.TOKENIZER} is the tokenizer of another run; put the one back "
                "with which this run was trained"
            )
        if not isinstance(facts.get("model"), dict):
            raise UserError(
                f"{folder / files.ARRANGEMENT} tells no model; give the command of `addnorm train` "
                "again, which writes it anew"
            )
        chosen = pick_device(device)
        model = build(Config.from_kwargs(**_window_to_tuple(facts["model"])))
        model.load_state_dict(found.tensors["model"])
        model.load_state_dict(found.tensors.get("average", {}), strict=False)
        for stack in model.stacks:
            stack.packed = True
        return cls(
            folder,
            recipe,
            model.to(chosen).eval(),
            tokenizer,
            tuple(facts.get("labels", ())),
            found.step,
            chosen,
            best,
        )


def find_checkpoint(folder: Path, which: str = "best") -> tuple[Checkpoint, bool]:
    """The best checkpoint of a run, or the last; the newest that is whole if there is no best. And
    whether none had to be passed over.
    """
    kept = folder / files.CHECKPOINTS
    newest = next(checkpoints.iter_valid_checkpoints(kept), None)
    if newest is None:
        state = "every one is damaged" if checkpoints.list_steps(kept) else "training has not begun"
        raise UserError(
            f"{folder} has no checkpoint ({state}); give its `addnorm train` command again"
        )
    best = newest.state["progress"]["best_step"] if which == "best" else newest.step
    best = best or newest.step
    found = newest if best == newest.step else checkpoints.load(kept, best)
    return found or newest, found is not None and checkpoints.list_steps(kept)[0] == newest.step


def _window_to_tuple(values: dict[str, object]) -> dict[str, object]:
    """JSON has lists where a config wants tuples."""
    window = values.get("window")
    return values | ({"window": tuple(window)} if isinstance(window, list) else {})
