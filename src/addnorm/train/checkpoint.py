"""Checkpoints on disk: written atomically, verified by checksums when read.

    checkpoints/
        step-200/
            model.safetensors
            optimizer.safetensors
            average.safetensors      if the recipe has `ema`
            state.json               train state, checksum of each file and of itself

With `checkpoints=sharded` each name is a folder with a file of each process instead
(`addnorm.train.sharding.checkpoint_shards`). Readers accept both forms.

A checkpoint is written into a hidden folder, flushed to disk and renamed. A process that is killed
leaves the hidden folder at most, and `prune` removes it. Files that change later (a full or failing
disk, a partial copy) fail their checksum, and `load` returns None.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.core.files import (
    file_checksum,
    fsync_path,
    owner_id,
    read_json_and_files,
    to_checked_json,
)
from addnorm.models.base import save_tensors
from addnorm.train.distributed import World
from addnorm.train.sharding.checkpoint_shards import read_full_tensors, write_shards
from addnorm.train.train_state import TrainState

STATE_FILE = "state.json"
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint."""

    step: int
    tensors: dict[str, Tensors]
    """Tensors of each file: `model`, `optimizer` and possibly `average`."""
    state: dict[str, Any]
    """JSON data."""


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint to `folder/step-N`; replaces an existing one of the same step."""
    temporary = folder / f".step-{checkpoint.step}.{owner_id()}"
    try:
        temporary.mkdir(parents=True)
        checksums = {}
        for name, tensors in checkpoint.tensors.items():
            path = temporary / f"{name}.safetensors"
            save_tensors(tensors, path)
            fsync_path(path)
            checksums[path.name] = file_checksum(path)
        _publish(folder, temporary, checkpoint, checksums)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def save_shards(folder: Path, checkpoint: Checkpoint, world: World) -> None:
    """Write a checkpoint as `save` does, each process its own shards. All must call this."""
    temporary = folder / f".step-{checkpoint.step}.shards"
    checksums = write_shards(temporary, checkpoint.tensors, world)
    world.run_on_main(lambda: _publish(folder, temporary, checkpoint, checksums))


def _publish(
    folder: Path, temporary: Path, checkpoint: Checkpoint, checksums: dict[str, str]
) -> None:
    """Add the state to the files of a checkpoint, and give their folder its name."""
    target = folder / f"step-{checkpoint.step}"
    state = {"step": checkpoint.step, **checkpoint.state}
    (temporary / STATE_FILE).write_bytes(to_checked_json(state, checksums))
    fsync_path(temporary / STATE_FILE)
    if target.exists():
        shutil.rmtree(target)
    temporary.replace(target)
    fsync_path(folder)


def load(folder: Path, step: int) -> Checkpoint | None:
    """Return the checkpoint of a step with whole tensors, or None if it is missing or damaged."""
    path = folder / f"step-{step}"
    try:
        state, files = _verify(path, step)
        names = {Path(name).parts[0] for name in files}
        tensors = {
            Path(name).stem: (load_file if name in files else read_full_tensors)(path / name)
            for name in names
        }
    except (UserError, OSError, SafetensorError):
        return None
    return Checkpoint(step, tensors, state)


def is_valid(folder: Path, step: int) -> bool:
    """Return whether all files of a checkpoint are there and undamaged."""
    try:
        _verify(folder / f"step-{step}", step)
    except (UserError, OSError):
        return False
    return True


def _verify(path: Path, step: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the JSON data of a checkpoint and the checksums of its files, which are verified.

    Raises:
        UserError: the state or a file is damaged, or a shard is left over
        OSError: a file is missing
    """
    state, files = _read_state(path, step)
    shards = {str(shard.relative_to(path)) for shard in path.glob("*/*.safetensors")}
    damaged = [name for name in files if file_checksum(path / name) != files[name]]
    damaged += sorted(shards - files.keys())  # torch reads all files of a folder
    if damaged:
        raise UserError(f"{path / damaged[0]} has changed since it was written")
    return state, files


def has_shards(folder: Path, step: int) -> bool:
    """Return whether a checkpoint is sharded."""
    return (folder / f"step-{step}" / "model").is_dir()


def read_state(folder: Path, step: int) -> dict[str, Any] | None:
    """Return the JSON data of a checkpoint, or None if it is missing or damaged."""
    try:
        return _read_state(folder / f"step-{step}", step)[0]
    except UserError:
        return None


def _read_state(path: Path, step: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the JSON data of a checkpoint, and the checksums of its files.

    Raises:
        UserError: the state is missing or damaged
    """
    state, files = read_json_and_files(path / STATE_FILE, nonfinite=True, required=True)
    if not isinstance(state, dict) or state.get("step") != step:
        raise UserError(f"{path / STATE_FILE}: expected the state of step {step}")
    TrainState.from_dict(state.get("progress", {}))
    return state, files


def list_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint, valid or not, newest first."""
    names = (path.name.removeprefix("step-") for path in folder.glob("step-*"))
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def iter_valid_checkpoints(folder: Path) -> Iterator[Checkpoint]:
    """Yield the valid checkpoints, newest first."""
    for step in list_steps(folder):
        checkpoint = load(folder, step)
        if checkpoint is not None:
            yield checkpoint


def prune(folder: Path, *, keep: int, protected: set[int]) -> None:
    """Delete all checkpoints except the newest `keep` and the `protected` steps.

    Also deletes the hidden folders of writers that were killed.
    """
    for step in list_steps(folder)[keep:]:
        if step not in protected:
            shutil.rmtree(folder / f"step-{step}", ignore_errors=True)
    for unfinished in folder.glob(".step-*"):
        shutil.rmtree(unfinished, ignore_errors=True)


def drop_after(folder: Path, step: int) -> None:
    """Delete the checkpoints of later steps."""
    for later in list_steps(folder):
        if later > step:
            shutil.rmtree(folder / f"step-{later}", ignore_errors=True)
