"""Tiny corpora and recipes; a run takes about a second."""

import hashlib
import random

from addnorm.data import write_corpus
from addnorm.train.callbacks import TrainCallback
from addnorm.train.recipe import Recipe

SMALL = {
    "dim": 16,
    "depth": 1,
    "heads": 2,
    "tokenizer": "char",
    "max_length": 16,
    "batch_tokens": 96,
    "steps": 12,
    "log_every": 1,
    "monitor_every": 4,
    "valid_every": 4,
    "save_every": 4,
    "lr": 0.01,
}


def write_number_corpus(folder, task="translate", count=60):
    """Write a corpus of numbers: reverse them, model them, or classify them as even or odd."""
    rng = random.Random(5)
    numbers = [str(rng.randrange(10, 10 ** rng.randint(2, 6))) for _ in range(count)]
    record = {
        "translate": lambda n: {"source": n, "target": n[::-1]},
        "lm": lambda n: {"text": n},
        "classify": lambda n: {"text": n, "label": "odd" if int(n) % 2 else "even"},
    }[task]
    splits = {"train": map(record, numbers[:-12]), "valid": map(record, numbers[-12:])}
    return write_corpus(folder, task, splits=splits)


def make_recipe(data, task="translate", **changes):
    return Recipe.from_dict({"task": task, "data": str(data), **SMALL, **changes})


def digest(folder, step=None):
    """Return checksums of weights and optimizer state of a checkpoint, the newest by default."""
    steps = sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))
    path = folder / "checkpoints" / f"step-{step or steps[-1]}"
    return [
        hashlib.sha256((path / f"{name}.safetensors").read_bytes()).hexdigest()
        for name in ("model", "optimizer")
    ]


class RecordingCallback(TrainCallback):
    """Callback that records messages, rows and steps."""

    def __init__(self):
        self.messages, self.rows, self.steps = [], [], []

    def on_message(self, text):
        self.messages.append(text)

    def on_rows(self, rows):
        self.rows += rows

    def on_step_end(self, state, loss):
        self.steps.append((state.step, loss))
