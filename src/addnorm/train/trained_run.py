"""Trained runs, opened for inference."""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import Tokenizer
from addnorm.models import Config, Model
from addnorm.models.base import WEIGHTS_FILE
from addnorm.models.build import build_with_weights
from addnorm.train import checkpoint as checkpoints
from addnorm.train import run_folder as files
from addnorm.train.checkpoint import Checkpoint, Tensors
from addnorm.train.device import pick_device
from addnorm.train.recipe import Recipe


@dataclass(frozen=True)
class TrainedRun:
    """Model, tokenizer and labels of a run, in evaluation mode."""

    folder: Path
    recipe: Recipe
    model: Model
    """Model with the weights of a checkpoint; with their moving average if the recipe has `ema`."""
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    """Class names in the order of the logits; empty if the task has no labels."""
    step: int
    """The step of the checkpoint."""
    device: torch.device
    is_best: bool = True
    """Whether the requested checkpoint was loaded; False if a damaged one was passed over."""

    def __str__(self) -> str:
        model = self.recipe.model
        size = sum(weight.numel() for weight in self.model.parameters())
        return (
            f"{self.task} run in {self.folder}: {model['wiring']} with norm {model['norm']}, "
            f"{size:,} parameters, step {self.step}, {self.device}"
        )

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.recipe.task

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        task: str | None = None,
        device: str = "auto",
        which: Literal["best", "last"] = "best",
        average: int | None = None,
    ) -> "TrainedRun":
        """Load a run from its folder.

        Args:
            folder: the run's folder
            task: the expected task; None accepts any
            device: name of a device, or `auto`
            which: the checkpoint with the lowest validation loss, or the last one
            average: number of last checkpoints whose weights are averaged, instead of `which`

        Raises:
            UserError: no run, no valid checkpoint, another task, or files of another run
        """
        folder = Path(folder)
        recipe = files.read_config(folder)
        if task is not None and recipe.task != task:
            raise UserError(
                f"{folder}: expected a run of task {task!r}, got one of {recipe.task!r}; choose "
                "another run"
            )
        checkpoint, is_best = find_checkpoint(folder, which if average is None else "last")
        facts = files.read_arrangement(folder)
        tokenizer = Tokenizer.load(folder / files.TOKENIZER)
        if checkpoint.state.get("tokenizer") != tokenizer.digest:
            raise UserError(
                f"{folder / files.TOKENIZER} is the tokenizer of another run; restore the "
                "tokenizer that this run started with"
            )
        torch_device = pick_device(device)
        weights = _evaluated_weights(checkpoint)
        if average is not None:
            weights = average_checkpoints(folder, average, every=recipe.save_every)
        model = _build_model(folder, facts, checkpoint.step, weights)
        for stack in model.stacks:
            stack.packed = True
        return cls(
            folder,
            recipe,
            model.to(torch_device).eval(),
            tokenizer,
            tuple(facts.get("labels", ())),
            checkpoint.step,
            torch_device,
            is_best,
        )


def load_run_model(folder: str | Path) -> Model:
    """Return the model of a run, or of one of its checkpoints, on the CPU in evaluation mode.

    Args:
        folder: folder of a run, whose best checkpoint is loaded, or `checkpoints/step-N` in one

    Raises:
        UserError: no run, no such checkpoint, or a damaged one
    """
    folder = Path(folder).resolve()
    if (folder / files.CONFIG).is_file():
        run, checkpoint = folder, find_checkpoint(folder)[0]
    else:
        run, step = folder.parents[1], folder.name.removeprefix("step-")
        loaded = checkpoints.load(folder.parent, int(step)) if step.isdecimal() else None
        if loaded is None:
            raise UserError(f"{folder}: expected a valid checkpoint; it is damaged or incomplete")
        checkpoint = loaded
    facts, weights = files.read_arrangement(run), _evaluated_weights(checkpoint)
    return _build_model(run, facts, checkpoint.step, weights).eval()


def _build_model(folder: Path, facts: dict[str, Any], step: int, weights: Tensors) -> Model:
    """Build the model of a run; messages name the checkpoint of `step` as the source of weights."""
    if not isinstance(facts.get("model"), dict):
        raise UserError(
            f"{folder / files.ARRANGEMENT} describes no model; rerun the `addnorm train` "
            "command to rewrite it"
        )
    source = folder / files.CHECKPOINTS / f"step-{step}" / WEIGHTS_FILE
    return build_with_weights(Config.from_dict(facts["model"]), weights, source=source)


def _evaluated_weights(checkpoint: Checkpoint) -> Tensors:
    """Return the weights of a checkpoint, or their moving average, which has no buffers."""
    return checkpoint.tensors["model"] | checkpoint.tensors.get("average", {})


def average_checkpoints(folder: Path, count: int, *, every: int) -> Tensors:
    """Return the mean of the weights of the last checkpoints of a run.

    Vaswani et al., Attention Is All You Need, 2017, section 6.1. Checkpoints that an interruption
    left at other steps are ignored, so a resumed run has the average of an uninterrupted one.

    Args:
        folder: the run's folder
        count: number of checkpoints
        every: steps between two checkpoints, as in the recipe; the last one may be at any step

    Raises:
        UserError: the run has fewer valid checkpoints
    """
    if count < 1:
        raise UserError(f"average: expected a number of checkpoints from 1, got {count}")
    checkpoint_folder = folder / files.CHECKPOINTS
    newest = checkpoints.list_steps(checkpoint_folder)[0]
    regular = (
        checkpoint
        for checkpoint in checkpoints.iter_valid_checkpoints(checkpoint_folder)
        if checkpoint.step % every == 0 or checkpoint.step == newest
    )
    last = [_evaluated_weights(checkpoint) for checkpoint in islice(regular, count)]
    if len(last) < count:
        raise UserError(
            f"average: expected at most {len(last)}, the number of checkpoints of {folder}, got "
            f"{count}; keep more of them with the recipe key keep"
        )
    return {
        name: torch.stack([weights[name] for weights in last]).double().mean(0).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in last[0].items()
    }


def find_checkpoint(folder: Path, which: str = "best") -> tuple[Checkpoint, bool]:
    """Return a checkpoint of a run, and whether it is the requested one.

    If the requested checkpoint is damaged, the newest valid one is returned. The same one is
    returned for `best` if the run has no validation.

    Args:
        folder: the run's folder
        which: `best` (lowest validation loss) or `last`

    Raises:
        UserError: the run has no valid checkpoint
    """
    checkpoint_folder = folder / files.CHECKPOINTS
    newest = next(checkpoints.iter_valid_checkpoints(checkpoint_folder), None)
    if newest is None:
        has_damaged = bool(checkpoints.list_steps(checkpoint_folder))
        state = "all are damaged" if has_damaged else "training has not started"
        raise UserError(
            f"{folder} has no valid checkpoint ({state}); rerun its `addnorm train` command"
        )
    step = newest.state["progress"]["best_step"] if which == "best" else newest.step
    step = step or newest.step
    requested = newest if step == newest.step else checkpoints.load(checkpoint_folder, step)
    is_newest_valid = checkpoints.list_steps(checkpoint_folder)[0] == newest.step
    return requested or newest, requested is not None and is_newest_valid
