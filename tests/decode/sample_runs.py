"""Runs that nobody trained: small models with a real tokenizer and a real corpus."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from addnorm.data.corpus import write_corpus
from addnorm.data.tokenizer import Tokenizer
from addnorm.models import build

TEXTS = ["ab ba", "cab", "a bad cab", "dad", "add a bed", "Öde", "bead", "abc abc abc"]
MODELS = {"translate": "seq2seq", "lm": "lm", "classify": "classifier"}


@dataclass
class Recipe:
    data: str
    max_length: int = 40
    batch_tokens: int = 200


@dataclass
class FakeRun:
    """The fields of a `Run`."""

    task: str
    model: Any
    tokenizer: Any
    recipe: Recipe
    labels: tuple[str, ...] = ()
    step: int = 3
    folder: Path = field(default_factory=Path)


def records(task, count, seed):
    chance = random.Random(seed)
    for _ in range(count):
        text = " ".join(chance.choices(TEXTS, k=2))
        yield {
            "translate": {"source": text, "target": text[::-1]},
            "lm": {"text": text},
            "classify": {"text": text, "label": chance.choice(("dull", "grand", "new"))},
        }[task]


def run_of(task, folder, *, kind="char", seed=0, **changes):
    """A run whose corpus stands in a folder."""
    splits = {"train": 60, "valid": 5, "test": 23}
    corpus = write_corpus(
        folder,
        task,
        splits={
            name: list(records(task, count, number))
            for number, (name, count) in enumerate(splits.items())
        },
    )
    tokenizer = Tokenizer.train(corpus, kind, vocab=300)
    sizes = {"dim": 16, "depth": 2, "heads": 2, "vocab": tokenizer.vocab, "kind": MODELS[task]}
    if task == "classify":
        sizes["classes"] = len(corpus.labels)
    model = build(seed=seed, **sizes | changes).eval().double()
    return FakeRun(task, model, tokenizer, Recipe(str(folder)), corpus.labels, folder=folder)
