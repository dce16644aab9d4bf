"""Untrained runs: small models with a real tokenizer and a real corpus."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from addnorm.data.corpus import write_corpus
from addnorm.data.tokenizer import Tokenizer
from addnorm.models import build
from addnorm.tasks import get_task

TEXTS = ["ab ba", "cab", "a bad cab", "dad", "add a bed", "Öde", "bead", "abc abc abc"]


@dataclass
class Recipe:
    data: str
    max_length: int = 40
    batch_tokens: int = 200
    task_options: dict[str, Any] = field(default_factory=dict)


@dataclass
class FakeRun:
    """The fields of a `TrainedRun`."""

    task: str
    model: Any
    tokenizer: Any
    recipe: Recipe
    labels: tuple[str, ...] = ()
    step: int = 3
    folder: Path = field(default_factory=Path)


def records(task, count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        text = " ".join(rng.choices(TEXTS, k=2))
        yield {
            "translate": {"source": text, "target": text[::-1]},
            "lm": {"text": text},
            "mlm": {"text": text},
            "classify": {"text": text, "label": rng.choice(("dull", "grand", "new"))},
        }[task]


def make_run(task, folder, *, kind="char", seed=0, **changes):
    """Return an untrained run and write its corpus to a folder."""
    splits = {"train": 60, "valid": 5, "test": 23}
    corpus = write_corpus(
        folder,
        task,
        splits={
            name: list(records(task, count, number))
            for number, (name, count) in enumerate(splits.items())
        },
    )
    definition = get_task(task)
    tokenizer = Tokenizer.train(corpus, kind, vocab=300, special_tokens=definition.special_tokens)
    sizes = {"dim": 16, "depth": 2, "heads": 2, "vocab": tokenizer.vocab}
    sizes["kind"] = definition.model_kind
    if task == "classify":
        sizes["classes"] = len(corpus.labels)
    model = build(seed=seed, **sizes | changes).eval().double()
    return FakeRun(task, model, tokenizer, Recipe(str(folder)), corpus.labels, folder=folder)
