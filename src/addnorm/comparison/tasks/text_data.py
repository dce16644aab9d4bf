"""Corpora that comparisons stand on: made or found, what is answered of them, a baseline."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from addnorm.comparison import layout as files
from addnorm.comparison.spec import DEMO, Comparison
from addnorm.core.errors import UserError
from addnorm.data.batches import BatchIterator
from addnorm.data.corpus import Corpus, write_corpus
from addnorm.data.demo import Splits, make_demo
from addnorm.data.demo.dates import make_dates
from addnorm.data.tokenizer import Tokenizer
from addnorm.kernels.cross_entropy import IGNORE_INDEX
from addnorm.train.recipe import Recipe

HELD_OUT_RECORDS = 100
"""Records of each held-out part of a demo corpus: enough to tell arms apart, and quick."""
MAX_BASELINE_TOKENS = 2_000_000
"""Tokens of the training part that the baseline is counted on."""

MAX_SCORED_CHARACTERS = 100_000
"""Characters of the records that each cell answers, about."""


def unigram_loss(corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe) -> float:
    """Loss of a model that knows how often each token (or label) occurs, and nothing else.

    loss = - mean over valid tokens of log((count(token) + 1) / (all + vocab))

    count, all: in the training part, of at most 2 million tokens
    """
    sides: dict[str, Any] = {"tokens": recipe.batch_tokens, "longest": recipe.max_length}
    counts: Counter[int] = Counter()
    for asked in _iter_targets(BatchIterator(corpus, tokenizer, **sides), recipe):
        counts.update(asked.tolist())
        if counts.total() >= MAX_BASELINE_TOKENS:
            break
    kinds = len(corpus.labels) if recipe.task == "classify" else tokenizer.vocab
    total = counts.total() + kinds
    loss, seen = 0.0, 0
    for asked in _iter_targets(BatchIterator(corpus, tokenizer, split="valid", **sides), recipe):
        loss -= math.fsum(math.log((counts[token] + 1) / total) for token in asked.tolist())
        seen += asked.numel()
    if not seen:
        raise UserError(
            f"nothing in the valid part of {corpus.folder} can be used; wanted sentences of at most"
            f" {recipe.max_length} tokens: try a larger max_length"
        )
    return loss / seen


def _iter_targets(batches: BatchIterator, recipe: Recipe) -> Iterator[Tensor]:
    """What is to be predicted, batch by batch."""
    for batch, _ in batches.epoch():
        asked = batch.targets[:, 1:] if recipe.task == "translate" else batch.targets
        yield asked[asked != IGNORE_INDEX]


def check_corpus(spec: Comparison) -> None:
    """Refuse a corpus without a valid part."""
    if spec.data == DEMO:
        return
    corpus = Corpus.open(spec.data, spec.task)
    if not corpus.counts.get("valid"):
        raise UserError(
            f"the corpus {corpus.folder} has no valid part, by which arms are compared; make it "
            "again with one, as with `addnorm data ... --valid 0.05`"
        )


def open_corpus(spec: Comparison, folder: Path) -> Corpus:
    """The corpus of a comparison; a demo corpus is made in its folder."""
    if spec.data != DEMO:
        check_corpus(spec)
        return Corpus.open(spec.data, spec.task)
    made = folder / files.DATA
    if not (made / "corpus.json").exists():
        splits, about = demo_records(spec.task)
        write_corpus(made, spec.task, splits=splits, about=about)
    return Corpus.open(made, spec.task)


def demo_records(task: str) -> tuple[Splits, dict[str, Any]]:
    """The records of a demo corpus with short held-out parts, and plain facts."""
    splits, about = make_dates() if task == "translate" else make_demo(task)
    return splits | {part: splits[part][:HELD_OUT_RECORDS] for part in ("valid", "test")}, about


def write_scored_records(spec: Comparison, corpus: Corpus, folder: Path) -> None:
    """The first records of the test part, or of the valid part where there is no other."""
    split = "test" if corpus.counts.get("test") else "valid"
    records, size = [], 0
    for record in islice(corpus.records(split), spec.score):
        if size > MAX_SCORED_CHARACTERS:  # documents may be long
            break
        records.append(record)
        size += sum(map(len, record.values()))
    about = {"source": f"the first {len(records)} records of {split} of {corpus.folder}"}
    write_corpus(folder, spec.task, splits={"train": records, "test": records}, about=about)
