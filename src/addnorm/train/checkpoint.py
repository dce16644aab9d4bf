"""Checkpoints: weights, optimizer and progress of a step, written whole, checked when read."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from addnorm.core.files import fsync_path
from addnorm.models.base import save_tensors

STATE_FILE = "state.json"
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """What a step left: named groups of tensors (model, optimizer, average) and plain data."""

    step: int
    tensors: dict[str, Tensors]
    state: dict[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write `step-N` below `folder`, with the checksum of every file inside.

    The folder gets its name when all is on the disk, so a checkpoint that can be seen is whole; one
    of the same step is replaced.
    """
    target = folder / f"step-{checkpoint.step}"
    temporary = folder / f".step-{checkpoint.step}.{os.getpid()}"
    try:
        temporary.mkdir(parents=True)
        sums = {}
        for name, tensors in checkpoint.tensors.items():
            path = temporary / f"{name}.safetensors"
            save_tensors(tensors, path)
            fsync_path(path)
            sums[path.name] = _file_checksum(path)
        state = {"step": checkpoint.step, **checkpoint.state, "sums": sums}
        text = json.dumps(state | {"sum": _state_checksum(state)}, indent=1)
        (temporary / STATE_FILE).write_text(text, encoding="utf-8")
        fsync_path(temporary / STATE_FILE)
        if target.exists():
            shutil.rmtree(target)
        temporary.replace(target)
        fsync_path(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(folder: Path, step: int) -> Checkpoint | None:
    """The checkpoint of a step; None if it is damaged."""
    path = folder / f"step-{step}"
    state = read_state(folder, step)
    if state is None:
        return None
    tensors = {}
    for name, digest in state["sums"].items():
        file = path / name
        try:
            if _file_checksum(file) != digest:
                return None
            tensors[file.stem] = load_file(file)
        except (OSError, SafetensorError):
            return None
    return Checkpoint(step, tensors, state)


def read_state(folder: Path, step: int) -> dict[str, Any] | None:
    """The plain data of a checkpoint; None if it is damaged."""
    try:
        state = json.loads((folder / f"step-{step}" / STATE_FILE).read_text(encoding="utf-8"))
        own = state.pop("sum")
    except (OSError, ValueError, AttributeError, KeyError):
        return None
    return state if own == _state_checksum(state) and state["step"] == step else None


def list_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint, newest first; whole or not."""
    found = (path.name.removeprefix("step-") for path in folder.glob("step-*"))
    return sorted((int(name) for name in found if name.isdigit()), reverse=True)


def iter_valid_checkpoints(folder: Path) -> Iterator[Checkpoint]:
    """Checkpoints that are whole, newest first."""
    for step in list_steps(folder):
        checkpoint = load(folder, step)
        if checkpoint is not None:
            yield checkpoint


def prune(folder: Path, *, keep: int, protected: set[int]) -> None:
    """Remove all but the newest `keep` and the spared, and what a killed writer left."""
    for step in list_steps(folder)[keep:]:
        if step not in protected:
            shutil.rmtree(folder / f"step-{step}", ignore_errors=True)
    for left in folder.glob(".step-*"):
        shutil.rmtree(left, ignore_errors=True)


def drop_after(folder: Path, step: int) -> None:
    """Remove checkpoints of later steps, which a rewind has made untrue."""
    for later in list_steps(folder):
        if later > step:
            shutil.rmtree(folder / f"step-{later}", ignore_errors=True)


def _state_checksum(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _file_checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
