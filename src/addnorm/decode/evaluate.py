"""Evaluation of a run on a split of its corpus, by the measure of its task."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from addnorm.core.errors import UserError
from addnorm.data.batches import Batch, BatchIterator
from addnorm.data.corpus import Corpus
from addnorm.decode.inference import (
    DEFAULT_TRANSLATE_OPTIONS,
    InputWarnings,
    RunProtocol,
    translate,
)
from addnorm.decode.metrics import label_scores, translation_scores
from addnorm.decode.options import DecodingOptions
from addnorm.train.objective import Objective, make_token_mask

ProgressCallback = Callable[[int, int], object]
"""Called with how many more records are done, and how many there are."""


def evaluate(
    run: RunProtocol,
    split: str = "test",
    *,
    data: str | Path | None = None,
    options: DecodingOptions | None = None,
    on_progress: ProgressCallback | None = None,
) -> dict[str, Any]:
    """Scores of a run on a split, plain numbers and words.

    data: another corpus than the one it was trained on
    options: how to decode (translate)

    Every task: task, split, records, loss (mean negative log-likelihood in nats of what is
    predicted, teacher-forced, without smoothing). translate and lm: perplexity = exp(loss),
    predicted (how many tokens).
    translate: bleu, chrf, signature; see `translation_scores`. Loss leaves out what training would
    have left out, and says so in `left_out`; BLEU leaves out nothing.
    lm: the split as one text in blocks of `max_length`, as in training: each token is predicted
    from those before it in its block, also the start that separates documents. word_perplexity =
    exp(nll / words between blanks), bits_per_character and bits_per_byte = nll / log 2 / count.
    classify: accuracy, macro_f1, f1 by label, log_loss, calibration_error; see `label_scores`.
    """
    corpus = _open_corpus(run, data)
    corpus.path(split)
    if not corpus.counts[split]:
        raise UserError(f"the {split!r} part of {corpus.folder} is empty; nothing to evaluate on")
    told: dict[str, Any] = {"task": run.task, "split": split, "records": corpus.counts[split]}
    if options is not None and run.task != "translate":
        raise UserError(f"nothing is decoded to evaluate {run.task!r}; leave the options out")
    on_progress = on_progress or (lambda count, total: None)
    if run.task == "translate":
        return told | _evaluate_translation(
            run, corpus, split, options or DEFAULT_TRANSLATE_OPTIONS, on_progress
        )
    if run.task == "lm":
        return told | _evaluate_language_model(run, corpus, split, on_progress)
    return told | _evaluate_classifier(run, corpus, split, on_progress)


def _open_corpus(run: RunProtocol, data: str | Path | None) -> Corpus:
    if data is not None:
        return Corpus.open(data, run.task)
    folder = Path(run.recipe.data)
    if not folder.exists():
        raise UserError(
            f"the corpus of this run, {folder}, is not there any more; say where it is with --data"
        )
    return Corpus.open(folder, run.task)


def _evaluate_translation(
    run: RunProtocol,
    corpus: Corpus,
    split: str,
    options: DecodingOptions,
    on_progress: ProgressCallback,
) -> dict[str, Any]:
    written, notes = [], InputWarnings()
    sources = (record["source"] for record in corpus.records(split))
    for answers in translate(run, sources, options, notes=notes):
        written.append(answers[0].text)
        on_progress(1, corpus.counts[split])
    wanted = [record["target"] for record in corpus.records(split)]
    cut = {"cut": notes.num_truncated} if notes.num_truncated else {}
    return {
        **translation_scores(written, wanted),
        "beam": options.beam,
        "length_penalty": options.length_penalty,
        **_evaluate_loss(run, corpus, split),
        **cut,
    }


def _evaluate_language_model(
    run: RunProtocol, corpus: Corpus, split: str, on_progress: ProgressCallback
) -> dict[str, Any]:
    words = characters = size = 0
    for record in corpus.records(split):
        text = record["text"]
        words += len(text.split())
        characters += len(text)
        size += len(text.encode("utf-8", errors="replace"))
    told = _evaluate_loss(run, corpus, split)
    nll = told["loss"] * told["predicted"]
    on_progress(corpus.counts[split], corpus.counts[split])
    return {
        **told,
        "word_perplexity": _safe_exp(nll / max(words, 1)),
        "bits_per_character": nll / math.log(2) / max(characters, 1),
        "bits_per_byte": nll / math.log(2) / max(size, 1),
        "words": words,
        "characters": characters,
        "bytes": size,
    }


def _evaluate_classifier(
    run: RunProtocol, corpus: Corpus, split: str, on_progress: ProgressCallback
) -> dict[str, Any]:
    places = {label: number for number, label in enumerate(run.labels)}
    strange = [label for label in corpus.labels if label not in places]
    if strange:
        raise UserError(
            f"{corpus.folder} has the label {strange[0]!r}, which this run does not know; it knows "
            f"{', '.join(run.labels)}"
        )
    numbers = np.array([places[label] for label in corpus.labels])  # theirs to ours
    found, truth = [], []
    batches = _make_batches(run, corpus, split)
    for batch in _iter_on_device(run, batches):
        with torch.inference_mode():
            logits = run.model(batch.inputs, mask=make_token_mask(batch.inputs))
        found.append(logits.cpu().double().softmax(-1).numpy())
        truth.append(numbers[batch.targets[:, 0].cpu().numpy()])
        on_progress(len(logits), corpus.counts[split])
    told = label_scores(np.concatenate(found), np.concatenate(truth), run.labels)
    return {**told, "loss": told["log_loss"], **_skipped_fields(batches)}


def _evaluate_loss(run: RunProtocol, corpus: Corpus, split: str) -> dict[str, Any]:
    """Mean negative log-likelihood of a split, and what follows from it."""
    objective = Objective(run.model, run.task)
    sums = torch.zeros(3, dtype=torch.float64)
    batches = _make_batches(run, corpus, split)
    for batch in _iter_on_device(run, batches):
        with torch.inference_mode():
            sums += objective(batch.inputs, batch.targets)[1].cpu()
    nll, _, count = sums.tolist()
    if not count:
        raise UserError(
            f"nothing in {batches.path} can be predicted: {batches.describe_skipped() or 'it is too short'}"
        )
    return {
        "loss": nll / count,
        "perplexity": _safe_exp(nll / count),
        "predicted": int(count),
        **_skipped_fields(batches),
    }


def _make_batches(run: RunProtocol, corpus: Corpus, split: str) -> BatchIterator:
    recipe = run.recipe
    return BatchIterator(
        corpus,
        run.tokenizer,
        split=split,
        tokens=recipe.batch_tokens,
        longest=recipe.max_length,
    )


def _iter_on_device(run: RunProtocol, batches: BatchIterator) -> Iterator[Batch]:
    device = next(run.model.parameters()).device
    for batch, _ in batches.epoch():
        yield batch.to(device)


def _skipped_fields(batches: BatchIterator) -> dict[str, str]:
    return {"left_out": batches.describe_skipped()} if batches.describe_skipped() else {}


def _safe_exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
