"""Corpora of comparisons: the demo corpus, the records to score, and the unigram baseline."""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from addnorm.comparison import folder_layout as files
from addnorm.comparison.spec import DEMO, Comparison
from addnorm.core.errors import UserError
from addnorm.data.batches import BatchIterator
from addnorm.data.corpus import Corpus, write_corpus
from addnorm.data.tokenizer import Tokenizer
from addnorm.kernels.cross_entropy import IGNORE_INDEX
from addnorm.tasks import TextTask, get_task
from addnorm.tasks.base import Splits
from addnorm.train.recipe import Recipe

HELD_OUT_RECORDS = 100
"""Records of each held-out split of a demo corpus: enough to rank arms, and fast."""
MAX_BASELINE_TOKENS = 2_000_000
"""Training tokens that the baseline counts."""
MAX_SCORED_CHARACTERS = 100_000
"""Approximate upper bound of the characters that each cell is scored on."""


def unigram_loss(corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe) -> float:
    """Return the validation loss of a predictor that knows only the frequency of each target.

    loss = - mean over valid targets of log((count(target) + 1) / (all + kinds))

    count, all: over the training split, at most 2 million targets
    kinds: number of labels, or of tokens
    """
    task = recipe.make_task()
    sizes: dict[str, Any] = {"batch_tokens": recipe.batch_tokens, "max_length": recipe.max_length}
    counts: Counter[int] = Counter()
    for targets in _iter_targets(task, task.make_batches(corpus, tokenizer, **sizes)):
        counts.update(targets.tolist())
        if counts.total() >= MAX_BASELINE_TOKENS:
            break
    total = counts.total() + (task.num_classes(corpus) or tokenizer.vocab)
    loss, count = 0.0, 0
    held_out = task.make_batches(corpus, tokenizer, split="valid", **sizes)
    for targets in _iter_targets(task, held_out):
        loss -= math.fsum(math.log((counts[token] + 1) / total) for token in targets.tolist())
        count += targets.numel()
    if not count:
        raise UserError(
            f"the valid split of {corpus.folder} has no usable record; expected sentences of at "
            f"most {recipe.max_length} tokens: try a larger max_length"
        )
    return loss / count


def _iter_targets(task: TextTask, batches: BatchIterator) -> Iterator[Tensor]:
    """Yield the targets of each batch, without padding."""
    for batch, _ in batches.epoch():
        targets = task.select_targets(batch.targets)
        yield targets[targets != IGNORE_INDEX]


def check_corpus(task: TextTask, spec: Comparison) -> None:
    """Raise UserError for a corpus without a valid split."""
    if spec.data == DEMO:
        return
    corpus = task.open_corpus(spec.data)
    if not corpus.counts.get("valid"):
        raise UserError(
            f"the corpus {corpus.folder} has no valid split, by which arms are compared; build it "
            "again with one, for example with `addnorm data ... --valid 0.05`"
        )


def open_corpus(task: TextTask, spec: Comparison, folder: Path) -> Corpus:
    """Return the corpus of a comparison; a demo corpus is generated in its folder."""
    if spec.data != DEMO:
        check_corpus(task, spec)
        return task.open_corpus(spec.data)
    demo = folder / files.DATA
    if not (demo / "corpus.json").exists():
        splits, about = demo_records(spec.task)
        write_corpus(demo, spec.task, splits=splits, about=about)
    return task.open_corpus(demo)


def demo_records(task: str) -> tuple[Splits, dict[str, Any]]:
    """Return a demo corpus with short held-out splits, and the facts of its card."""
    splits, about = get_task(task).make_comparison_demo()
    return splits | {part: splits[part][:HELD_OUT_RECORDS] for part in ("valid", "test")}, about


def write_scored_records(spec: Comparison, corpus: Corpus, folder: Path) -> None:
    """Write the first records of the test split, or of valid without one, as a corpus."""
    split = "test" if corpus.counts.get("test") else "valid"
    records, size = [], 0
    for record in islice(corpus.records(split), spec.score):
        if size > MAX_SCORED_CHARACTERS:  # documents may be long
            break
        records.append(record)
        size += sum(map(len, record.values()))
    about = {"source": f"the first {len(records)} records of {split} of {corpus.folder}"}
    write_corpus(folder, spec.task, splits={"train": records, "test": records}, about=about)
