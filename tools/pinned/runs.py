"""Files, tensor names and rows that training runs write."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from addnorm.core.rows import read_rows
from addnorm.measure.spikes import SpikeDetector
from addnorm.train.optimizers.base import registry as optimizers
from addnorm.train.recipe import Recipe, list_recipe_keys
from addnorm.train.trainer import train
from tools.pinned.digests import list_files, list_keys, list_tensor_names, read_json_keys
from tools.pinned.tiny_data import TEXT_TASKS, TINY_RUN, write_tiny_corpus

SPIKE_POLICIES = ("log", "skip", "rewind")


@contextmanager
def report_spike_at_every_step() -> Iterator[None]:
    """Make the spike detector report a spike at every step."""
    original = SpikeDetector.update
    SpikeDetector.update = lambda self, loss: "spike"  # type: ignore[method-assign]
    try:
        yield
    finally:
        SpikeDetector.update = original  # type: ignore[method-assign]


@cache
def train_tiny_runs() -> dict[str, Any]:
    """Train every task, optimizer and spike policy briefly; return the names in their files."""
    jobs: dict[str, dict[str, Any]] = {task: {"task": task, "ema": 0.5} for task in TEXT_TASKS}
    jobs |= {f"optimizer {name}": {"task": "lm", "optimizer": name} for name in optimizers}
    jobs["not finite"] = {"task": "lm", "lr": 1e30, "clip": None, "schedule": "none"}
    jobs |= {f"on_spike {name}": {"task": "lm", "on_spike": name} for name in SPIKE_POLICIES}
    files: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for name, keys in jobs.items():
        with tempfile.TemporaryDirectory() as temporary:
            data = write_tiny_corpus(Path(temporary) / "data", keys["task"])
            folder = Path(temporary) / "run"
            recipe = Recipe.from_dict(TINY_RUN | {"data": str(data)} | keys)
            if name.startswith("on_spike"):
                with report_spike_at_every_step():
                    train(recipe, folder)
            else:
                train(recipe, folder)
            checkpoint = folder / "checkpoints" / "step-4"
            if name.startswith("optimizer"):
                tensors = list_tensor_names(checkpoint / "optimizer.safetensors")
                files[name] = sorted({tensor.rpartition("|")[2] for tensor in tensors})
                continue
            names: dict[str, set[str]] = {}
            for row in read_rows(folder / "rows.jsonl"):
                names.setdefault(str(row["name"]), set()).update(row)
            rows[name] = {each: sorted(fields) for each, fields in sorted(names.items())}
            if name not in TEXT_TASKS:
                rows[name] = {each: rows[name][each] for each in names if each not in rows["lm"]}
                continue
            files[name] = {
                "files": list_files(folder),
                "config.yaml": list_keys(yaml.safe_load((folder / "config.yaml").read_text())),
                "arrangement.json": read_json_keys(folder / "arrangement.json"),
                "state.json": read_json_keys(checkpoint / "state.json"),
                "model.safetensors": list_tensor_names(checkpoint / "model.safetensors"),
                "average.safetensors": len(list_tensor_names(checkpoint / "average.safetensors")),
            }
    return {"files": files, "rows": rows}


def pin_run_files() -> Any:
    """Return the files of a training run and their keys."""
    return train_tiny_runs()["files"] | {"spike detector": sorted(SpikeDetector().to_dict())}


def pin_row_names() -> Any:
    """Return the names and fields of the rows of training runs.

    Runs with spikes or non-finite losses list only the rows that the `lm` run does not have.
    """
    return train_tiny_runs()["rows"]


def pin_recipe_keys() -> Any:
    """Return every key of a recipe with its default."""
    return {name: default for name, default, _ in list_recipe_keys()}
