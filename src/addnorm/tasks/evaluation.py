"""Evaluation of a run on a split of its corpus."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from addnorm.core.errors import UserError
from addnorm.data.batches import Batch, BatchIterator
from addnorm.data.corpus import Corpus
from addnorm.decode.engine import model_device
from addnorm.decode.options import DecodingOptions
from addnorm.tasks.base import (
    LossMeans,
    ProgressCallback,
    RunProtocol,
    TextTask,
    get_run_task,
)
from addnorm.tasks.objective import Objective


def evaluate(
    run: RunProtocol,
    split: str = "test",
    *,
    data: str | Path | None = None,
    options: DecodingOptions | None = None,
    on_progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Return the metrics of a run on a split.

    Every task reports `task`, `split`, `records` and `loss`: the mean negative log-likelihood in
    nats of the predictions, teacher-forced, without label smoothing. Tasks that predict tokens add
    `perplexity` = exp(loss) and `predicted`, the number of tokens. Records that training drops are
    not part of the loss; `left_out` counts them.

    - translate: `bleu`, `chrf`, `signature`, over all records; see `translation_scores`
    - lm: the split as one text in blocks of `max_length`, as in training. `word_perplexity` =
      exp(nll / words between spaces); `bits_per_character`, `bits_per_byte` = nll / log 2 / count
    - classify: `accuracy`, `macro_f1`, `f1` by label, `log_loss`, `calibration_error`; see
      `label_scores`
    - mlm: `accuracy` of the masked tokens; the masks of a corpus are always the same

    Args:
        run: the run
        split: train, valid or test
        data: corpus to evaluate on; that of the run by default
        options: decoding options, for tasks that decode
        on_progress: progress callback
    """
    task = get_run_task(run)
    corpus = _open_corpus(run, task, data)
    corpus.paths(split)
    if not corpus.counts[split]:
        raise UserError(f"the {split!r} split of {corpus.folder} is empty; nothing to evaluate on")
    corpus.verify(split)
    if options is not None and task.evaluation_options is None:
        raise UserError(
            f"decoding options: expected none for task {task.name!r}, which decodes nothing"
        )
    if options is None and task.evaluation_options is not None:
        options = task.evaluation_options
    metrics = task.evaluate(
        run,
        corpus,
        split,
        options=options,
        on_progress=on_progress or (lambda count, total: None),
    )
    return {"task": task.name, "split": split, "records": corpus.counts[split], **metrics}


def _open_corpus(run: RunProtocol, task: TextTask, data: str | Path | None) -> Corpus:
    folder = Path(run.recipe.data if data is None else data)
    if data is None and not folder.exists():
        raise UserError(
            f"the corpus of this run, {folder}, no longer exists; pass its folder with --data"
        )
    return task.open_corpus(folder)


def measure_loss(run: RunProtocol, task: TextTask, batches: BatchIterator) -> LossMeans:
    """Return the summed loss of one pass over batches."""
    objective = Objective(run.model, task)
    sums = torch.zeros(3, dtype=torch.float64)
    for batch in iter_on_device(run, batches):
        with torch.inference_mode():
            sums += objective(*batch.inputs_and_targets)[1].cpu()
    means = LossMeans(*sums.tolist())
    if not means.count:
        raise UserError(
            f"{batches.path} has nothing to predict: "
            f"{batches.describe_skipped() or 'it is too short'}"
        )
    return means


def token_metrics(means: LossMeans, batches: BatchIterator) -> dict[str, Any]:
    """Return the metrics that every task with token predictions reports."""
    return {
        "loss": means.loss,
        "perplexity": safe_exp(means.loss),
        "predicted": int(means.count),
        **skipped_fields(batches),
    }


def make_split_batches(
    run: RunProtocol, task: TextTask, corpus: Corpus, split: str
) -> BatchIterator:
    """Return the batches of a split in a fixed order, in the sizes of training."""
    recipe = run.recipe
    return task.make_batches(
        corpus,
        run.tokenizer,
        split=split,
        batch_tokens=recipe.batch_tokens,
        max_length=recipe.max_length,
    )


def iter_on_device(run: RunProtocol, batches: BatchIterator) -> Iterator[Batch]:
    """Yield the batches of one epoch on the device of the run's model."""
    device = model_device(run.model)
    for batch, _ in batches.epoch():
        yield batch.to(device)


def skipped_fields(batches: BatchIterator) -> dict[str, str]:
    """Return `left_out`, the counts of dropped and truncated records, if there are any."""
    return {"left_out": batches.describe_skipped()} if batches.describe_skipped() else {}


def safe_exp(x: float) -> float:
    """Return exp(x), and infinity where it overflows."""
    return math.exp(x) if x < 700 else math.inf
