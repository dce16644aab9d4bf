"""What all cells of a comparison stand on: data, tokenizer, what to answer, and a baseline."""

import math
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from addnorm import __version__
from addnorm.core.errors import UserError
from addnorm.data.batches import Batches
from addnorm.data.corpus import Corpus, write_corpus
from addnorm.data.demo import Splits, make_demo
from addnorm.data.demo.dates import make_dates
from addnorm.data.tokenizer import Tokenizer
from addnorm.kernels.cross_entropy import IGNORE
from addnorm.lab import folder as files
from addnorm.lab.spec import DEMO, Comparison
from addnorm.train.recipe import Recipe
from addnorm.train.session import make_tokenizer

HELD_OUT = 100
"""Records of each held-out part of a demo corpus: enough to tell arms apart, and quick."""
MOST_COUNTED = 2_000_000
"""Tokens of the training part that the baseline is counted on."""

MOST_TEXT = 100_000
"""Characters of the records that each cell answers, about."""


@dataclass(frozen=True)
class Ground:
    """Facts that are the same for every cell, kept as `facts.json`."""

    data: str
    corpus: str
    """What tells the corpus from others."""
    tokenizer: str
    """What tells the tokenizer from others."""
    vocab: int
    baseline: float
    """Loss of the unigram model on the valid part, in nats."""
    counts: dict[str, int]
    machine: dict[str, str]
    versions: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> "Ground | None":
        """The ground of a comparison that was prepared before."""
        facts = files.read_json(folder / files.FACTS)
        return None if facts is None else cls(**facts)


def prepare(spec: Comparison, folder: Path) -> Ground:
    """Make what is not there yet: the demo corpus, the tokenizer, the records to be answered."""
    corpus = _corpus(spec, folder)
    before = Ground.read(folder)
    if before is not None:
        if before.corpus != corpus.digest:
            raise UserError(
                f"the corpus {corpus.folder} was changed since this comparison began; put the old "
                "one back, or begin anew with another -o"
            )
        return replace(before, data=str(corpus.folder))  # the folder may have moved
    recipe = spec.recipe(spec.cells()[0], data=corpus.folder, tokenizer=spec.tokenizer)
    tokenizer = make_tokenizer(recipe, corpus)
    tokenizer.save(folder / files.TOKENIZER)
    if spec.score:
        _write_score(spec, corpus, folder / files.SCORE)
    ground = Ground(
        data=str(corpus.folder),
        corpus=corpus.digest,
        tokenizer=tokenizer.digest,
        vocab=tokenizer.vocab,
        baseline=unigram(corpus, tokenizer, recipe),
        counts=corpus.counts,
        machine=machine(),
        versions={
            "addnorm": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )
    files.write_json(folder / files.FACTS, asdict(ground))
    return ground


def unigram(corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe) -> float:
    """Loss of a model that knows how often each token (or label) occurs, and nothing else.

    loss = - mean over valid tokens of log((count(token) + 1) / (all + vocab))

    count, all: in the training part, of at most 2 million tokens
    """
    sides: dict[str, Any] = {"tokens": recipe.batch_tokens, "longest": recipe.max_length}
    counts: Counter[int] = Counter()
    for asked in _asked(Batches(corpus, tokenizer, **sides), recipe):
        counts.update(asked.tolist())
        if counts.total() >= MOST_COUNTED:
            break
    kinds = len(corpus.labels) if recipe.task == "classify" else tokenizer.vocab
    total = counts.total() + kinds
    loss, seen = 0.0, 0
    for asked in _asked(Batches(corpus, tokenizer, split="valid", **sides), recipe):
        loss -= math.fsum(math.log((counts[token] + 1) / total) for token in asked.tolist())
        seen += asked.numel()
    if not seen:
        raise UserError(
            f"nothing in the valid part of {corpus.folder} can be used; wanted sentences of at most"
            f" {recipe.max_length} tokens: try a larger max_length"
        )
    return loss / seen


def _asked(batches: Batches, recipe: Recipe) -> Iterator[Tensor]:
    """What is to be predicted, batch by batch."""
    for batch, _ in batches.epoch():
        asked = batch.targets[:, 1:] if recipe.task == "translate" else batch.targets
        yield asked[asked != IGNORE]


def check_data(spec: Comparison) -> None:
    """Refuse data that cannot be compared on, before any folder is made."""
    if spec.data == DEMO:
        return
    corpus = Corpus.open(spec.data, spec.task)
    if not corpus.counts.get("valid"):
        raise UserError(
            f"the corpus {corpus.folder} has no valid part, by which arms are compared; make it "
            "again with one, as with `addnorm data ... --valid 0.05`"
        )


def _corpus(spec: Comparison, folder: Path) -> Corpus:
    if spec.data != DEMO:
        check_data(spec)
        return Corpus.open(spec.data, spec.task)
    made = folder / files.DATA
    if not (made / "corpus.json").exists():
        splits, about = demo_records(spec.task)
        write_corpus(made, spec.task, splits=splits, about=about)
    return Corpus.open(made, spec.task)


def demo_records(task: str) -> tuple[Splits, dict[str, Any]]:
    """The records of a demo corpus with short held-out parts, and plain facts."""
    splits, about = make_dates() if task == "translate" else make_demo(task)
    return splits | {part: splits[part][:HELD_OUT] for part in ("valid", "test")}, about


def _write_score(spec: Comparison, corpus: Corpus, folder: Path) -> None:
    """The first records of the test part, or of the valid part where there is no other."""
    split = "test" if corpus.counts.get("test") else "valid"
    records, size = [], 0
    for record in islice(corpus.records(split), spec.score):
        if size > MOST_TEXT:  # documents may be long
            break
        records.append(record)
        size += sum(map(len, record.values()))
    about = {"source": f"the first {len(records)} records of {split} of {corpus.folder}"}
    write_corpus(folder, spec.task, splits={"train": records, "test": records}, about=about)


def machine() -> dict[str, str]:
    """What the numbers are made on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "device": device,
    }


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())
