"""Classification: the label of a text, with an encoder and a classification head."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.data.batches import TEXTS_PER_CHUNK, Row, RowContext, concat_ids, iter_chunks
from addnorm.data.corpus import Corpus, Record
from addnorm.data.demo import classify as demo
from addnorm.data.tokenizer import START
from addnorm.decode.batching import batch_sentences
from addnorm.decode.engine import model_device
from addnorm.decode.metrics import label_scores
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence, pad_tokens
from addnorm.tasks.base import (
    Example,
    LossMeans,
    ProgressCallback,
    RunProtocol,
    Score,
    Splits,
    TextTask,
    make_token_mask,
    register,
)
from addnorm.tasks.evaluation import iter_on_device, make_split_batches, skipped_fields
from addnorm.tasks.line_inference import LINES_PER_CHUNK, InputWarnings, check_task


@register(
    Card(
        name="classify",
        title="Classification",
        formula="loss = -log p(label | x)",
        paper="Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language "
        "Understanding, 2018, arXiv 1810.04805",
        summary="Predict the label of a text with an encoder.",
    )
)
class Classify(TextTask):
    """Classification of a text.

    loss = -log p(label | x)

    x: START and the tokens of the text, truncated to `max_length`
    """

    noun, command = "classification", "classify"
    columns = ("text", "label")
    demo_source = "docstrings of the running Python's standard library, labelled by package"
    model_kind, attention_stacks = "classifier", ("encoder",)
    counts_inputs = True
    primary_score = Score(
        "accuracy",
        "accuracy",
        "Accuracy is the fraction of correct labels; higher is better.",
    )
    baseline_description = "a model that knows how often each label occurs and nothing else"

    def make_records(self, seed: int, languages: Sequence[str]) -> tuple[Splits, dict[str, Any]]:
        return demo.make(seed)

    def check_corpus(self, corpus: Corpus) -> None:
        super().check_corpus(corpus)
        if len(corpus.labels) < 2:
            raise UserError(
                f"{corpus.folder}: expected two or more labels, got {len(corpus.labels)}"
            )

    def encode_rows(self, records: Iterator[Record], context: RowContext) -> Iterator[Row]:
        indices = {label: index for index, label in enumerate(context.corpus.labels)}
        for chunk in iter_chunks(records, TEXTS_PER_CHUNK):
            texts = context.encode(record["text"] for record in chunk)
            for text, record in zip(texts, chunk, strict=True):
                if len(text) + 1 > context.max_length:
                    context.skipped[f"cut to {context.max_length} tokens"] += 1
                if record["label"] not in indices:
                    raise UserError(
                        f"{context.path}: expected labels listed in corpus.json, got "
                        f"{record['label']!r}; make the corpus again"
                    )
                label = np.array([indices[record["label"]]], np.int32)
                yield concat_ids(START, text)[: context.max_length], label

    def select_targets(self, targets: Tensor) -> Tensor:
        """Return the label of each row, (B)."""
        return targets[:, 0]

    def validation_metrics(self, means: LossMeans) -> dict[str, float]:
        return {"accuracy": means.accuracy}

    def evaluate(
        self,
        run: RunProtocol,
        corpus: Corpus,
        split: str,
        *,
        options: DecodingOptions | None,
        on_progress: ProgressCallback,
    ) -> dict[str, Any]:
        indices = {label: index for index, label in enumerate(run.labels)}
        unknown = [label for label in corpus.labels if label not in indices]
        if unknown:
            raise UserError(
                f"{corpus.folder}: expected the labels of the run ({', '.join(run.labels)}), got "
                f"{unknown[0]!r}"
            )
        corpus_to_run = np.array([indices[label] for label in corpus.labels])
        probabilities, truth = [], []
        batches = make_split_batches(run, self, corpus, split)
        for batch in iter_on_device(run, batches):
            with torch.inference_mode():
                logits = run.model(batch.inputs, mask=make_token_mask(batch.inputs))
            probabilities.append(logits.cpu().double().softmax(-1).numpy())
            truth.append(corpus_to_run[batch.targets[:, 0].cpu().numpy()])
            on_progress(len(logits), corpus.counts[split])
        scores = label_scores(np.concatenate(probabilities), np.concatenate(truth), run.labels)
        return {**scores, "loss": scores["log_loss"], **skipped_fields(batches)}

    def to_example(self, record: Record) -> Example:
        return Example(record["text"], record["label"])

    def generate_samples(self, run: RunProtocol, records: Sequence[Record]) -> list[str]:
        """Return labels with their probability, such as `ast (93%)`."""
        predictions = classify_texts(run, (record["text"] for record in records))
        return [f"{each.label} ({each.probability:.0%})" for each in predictions]

    def is_correct(self, output: str, target: str) -> bool:
        """Return whether the label of a sample, without its probability, is the target."""
        return output.rpartition(" (")[0].strip() == target.strip()


@dataclass(frozen=True)
class LabelPrediction:
    """Predicted label of a text.

    label: the most likely label; None for an empty line
    probability: its probability
    probabilities: those of all labels, in the order of the run's labels
    tokens: token ids of the line
    """

    label: str | None = None
    probability: float = 0.0
    probabilities: tuple[float, ...] = ()
    tokens: tuple[int, ...] = ()


def classify_texts(
    run: RunProtocol,
    lines: Iterable[str],
    *,
    batch_tokens: int = DecodingOptions.batch_tokens,
    chunk: int = LINES_PER_CHUNK,
    warnings: InputWarnings | None = None,
) -> Iterator[LabelPrediction]:
    """Predict the label of each line, in their order.

    Args:
        run: a run trained for `classify`
        lines: texts; a line longer than `max_length` of the recipe is truncated
        batch_tokens: tokens per batch, padding included
        chunk: lines that are read before the first output
        warnings: counts of lines read and truncated, updated in place

    Yields:
        A prediction per line, with label None for an empty line.
    """
    check_task(run, "classify")
    return _iter_predictions(
        run, lines, batch_tokens, chunk, InputWarnings() if warnings is None else warnings
    )


def _iter_predictions(
    run: RunProtocol, lines: Iterable[str], batch_tokens: int, chunk: int, warnings: InputWarnings
) -> Iterator[LabelPrediction]:
    device = model_device(run.model)
    max_length, options = int(run.recipe.max_length), DecodingOptions(batch_tokens=batch_tokens)
    for texts in iter_chunks(lines, chunk):
        rows: dict[int, Sentence] = {}
        for index, ids in enumerate(run.tokenizer.encode(texts)):
            if texts[index].strip():
                warnings.num_truncated += len(ids) >= max_length
                rows[index] = Sentence((START, *ids[: max_length - 1]), limit=1)
        predictions: dict[int, LabelPrediction] = {}
        indices, sentences = list(rows), list(rows.values())
        for batch in batch_sentences(sentences, options):
            inputs, mask = pad_tokens([sentences[number].prefix for number in batch], device)
            with torch.inference_mode():
                probabilities = run.model(inputs, mask=mask).cpu().double().softmax(-1)
            for number, row in zip(batch, probabilities.tolist(), strict=True):
                best = max(range(len(row)), key=row.__getitem__)
                predictions[indices[number]] = LabelPrediction(
                    run.labels[best], row[best], tuple(row), sentences[number].prefix
                )
        for index in range(len(texts)):
            warnings.num_lines += 1
            yield predictions.get(index, LabelPrediction())
