"""Checksums of weights trained on demo data, without and with the native kernels."""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from addnorm.data.corpus import write_corpus
from addnorm.models.tabular import MODELS as TABLE_MODELS
from addnorm.tabular import TabularTransformerClassifier
from addnorm.tasks import get_task
from addnorm.train.recipe import Recipe
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train
from tools.pinned.tiny_data import TINY_RUN, make_tiny_table

ENTRY_POINT = Path(__file__).parents[1] / "pins.py"
TRAIN_STEPS = 20


def hash_weights(weights: Mapping[str, Tensor]) -> str:
    """Return the sha256 of the bytes of all tensors in the order of their names."""
    checksum = hashlib.sha256()
    for _, value in sorted(weights.items()):
        checksum.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return checksum.hexdigest()


def print_weight_checksums() -> None:
    """Train each task and table model on demo data; print a checksum of its weights."""
    torch.set_num_threads(1)
    label = os.environ.get("ADDNORM_NATIVE") or "on"
    keys: dict[str, Any] = TINY_RUN | {
        "dim": 32, "depth": 2, "heads": 4, "steps": TRAIN_STEPS, "max_length": 64,
        "batch_tokens": 256, "valid_every": 10, "save_every": 10, "monitor_every": 10,
        "device": "cpu",
    }  # fmt: skip
    for task in ("translate", "lm", "classify"):
        with tempfile.TemporaryDirectory() as temporary:
            splits, about = get_task(task).make_demo()
            short = {split: records[:300] for split, records in splits.items()}
            data = write_corpus(Path(temporary) / "data", task, splits=short, about=about).folder
            folder = Path(temporary) / "run"
            train(
                Recipe.from_dict(keys | {"task": task, "data": str(data), "dropout": 0.1}), folder
            )
            weights = TrainedRun.open(folder, device="cpu", which="last").model.state_dict()
            print(f"{task} native={label} {hash_weights(weights)}", flush=True)
    table = make_tiny_table(rows=320)
    labels = np.where(table["number"] > 0, "yes", "no")
    for model in TABLE_MODELS:
        estimator = TabularTransformerClassifier(
            model=model, dim=64, depth=2, heads=None if model == "mlp" else 8, max_epochs=2,
            batch_size=64, random_state=0, n_jobs=1, device="cpu",
        ).fit(table, labels)  # fmt: skip
        weights = estimator.module_.state_dict()
        print(f"fit {model} native={label} {hash_weights(weights)}", flush=True)


def print_all_weight_checksums() -> None:
    """Print the checksums without and with the native kernels, each in a new process."""
    for native in ("off", ""):
        environment = os.environ | {"ADDNORM_NATIVE": native, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(ENTRY_POINT), "--bits-here"]
        subprocess.run(command, env=environment, check=True)
