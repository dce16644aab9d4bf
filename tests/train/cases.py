"""A corpus and recipes so small that a run takes a second."""

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


def corpus(folder, task="translate", count=60):
    """Digits to be written backwards, to be continued, or to be told even from odd."""
    chance = random.Random(5)
    numbers = [str(chance.randrange(10, 10 ** chance.randint(2, 6))) for _ in range(count)]
    record = {
        "translate": lambda n: {"source": n, "target": n[::-1]},
        "lm": lambda n: {"text": n},
        "classify": lambda n: {"text": n, "label": "odd" if int(n) % 2 else "even"},
    }[task]
    splits = {"train": map(record, numbers[:-12]), "valid": map(record, numbers[-12:])}
    return write_corpus(folder, task, splits=splits)


def recipe(data, task="translate", **changes):
    return Recipe.from_dict({"task": task, "data": str(data), **SMALL, **changes})


def digest(folder, step=None):
    """What tells the weights of the newest checkpoint, or of one, from all others."""
    steps = sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))
    path = folder / "checkpoints" / f"step-{step or steps[-1]}"
    return [
        hashlib.sha256((path / f"{name}.safetensors").read_bytes()).hexdigest()
        for name in ("model", "optimizer")
    ]


class Notes(TrainCallback):
    """Keeps what was said and measured."""

    def __init__(self):
        self.words, self.rows, self.steps = [], [], []

    def on_message(self, text):
        self.words.append(text)

    def on_rows(self, rows):
        self.rows += rows

    def on_step_end(self, progress, loss):
        self.steps.append((progress.step, loss))
