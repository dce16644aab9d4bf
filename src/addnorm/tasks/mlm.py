"""Masked language modeling: masked tokens of a text, with an encoder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Fraction
from addnorm.core.seeds import derive_seed
from addnorm.data.batches import (
    TEXTS_PER_CHUNK,
    Row,
    RowContext,
    RowKey,
    concat_ids,
    iter_chunks,
)
from addnorm.data.corpus import Corpus, Record
from addnorm.data.tokenizer import END, MASK, START, Tokenizer
from addnorm.decode.batching import batch_sentences
from addnorm.decode.engine import model_device
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence, pad_tokens
from addnorm.tasks.base import (
    Example,
    LossMeans,
    ProgressCallback,
    RunProtocol,
    Score,
    register,
)
from addnorm.tasks.evaluation import make_split_batches, measure_loss, token_metrics
from addnorm.tasks.line_inference import LINES_PER_CHUNK, InputWarnings, check_task
from addnorm.tasks.lm import LanguageModeling
from addnorm.tasks.masking import mask_tokens

DEFAULT_TOP_K = 5
SAMPLE_WORDS = 12
"""Words of a comparison's samples; the middle one is masked."""

MaskRate = Annotated[float, Field(gt=0, lt=1)]


@register(
    Card(
        name="mlm",
        title="Masked language model",
        formula="loss = -sum over masked t of log p(x_t | masked x)",
        paper="Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language "
        "Understanding, 2018, arXiv 1810.04805",
        summary="Predict masked tokens of a text with an encoder.",
    )
)
class MaskedLanguageModeling(LanguageModeling):
    """Masked language modeling.

    loss = -sum over masked t of log p(x_t | masked x)

    x: START, tokens of one document, END; a long document makes several rows
    mask_rate: fraction of a row's tokens that are predicted, at least one
    mask_replace_rate: fraction of these that become the mask token in the input
    random_replace_rate: fraction of these that become a random token; the rest stays as it is
    """

    noun, command = "masked language modeling", "fill-mask"
    compatible_corpora = ("lm",)
    text_unit = "line"
    special_tokens = (MASK,)
    model_kind, attention_stacks = "masked_lm", ("encoder",)
    counts_inputs = True
    primary_score = Score(
        "accuracy",
        "accuracy",
        "Accuracy is the fraction of masked tokens that are predicted correctly; higher is better.",
    )

    # NOTE[DIFF]: masks are drawn again in every epoch, as in RoBERTa; BERT stored ten maskings.
    # NOTE[DIFF]: random tokens are never special, as in fairseq; BERT draws from all tokens.

    def __init__(
        self,
        *,
        mask_rate: MaskRate = 0.15,
        mask_replace_rate: Fraction = 0.8,
        random_replace_rate: Fraction = 0.1,
    ) -> None:
        if mask_replace_rate + random_replace_rate > 1:
            raise UserError(
                "mask_replace_rate + random_replace_rate: expected at most 1, got "
                f"{mask_replace_rate} + {random_replace_rate}"
            )
        self.mask_rate = mask_rate
        self.mask_replace_rate = mask_replace_rate
        self.random_replace_rate = random_replace_rate

    def encode_rows(self, records: Iterator[Record], context: RowContext) -> Iterator[Row]:
        """Yield pieces of at most `max_length` tokens of each document, START and END included."""
        length = max(1, context.max_length - 2)
        for chunk in iter_chunks(records, TEXTS_PER_CHUNK):
            for ids in context.encode_pieces(chunk):
                if not len(ids):
                    context.skipped["empty left out"] += 1
                for start in range(0, len(ids), length):
                    row = concat_ids(START, ids[start : start + length], END)
                    yield row, row

    def transform_row(self, row: Row, key: RowKey, tokenizer: Tokenizer) -> Row:
        """Mask a row, with draws that depend on the seed, the epoch and the row only."""
        assert tokenizer.mask_id is not None
        rng = np.random.default_rng(derive_seed(key.seed, "mask", key.epoch, key.pool, key.row))
        return mask_tokens(
            row[0],
            rng,
            rate=self.mask_rate,
            mask_replace_rate=self.mask_replace_rate,
            random_replace_rate=self.random_replace_rate,
            mask_id=tokenizer.mask_id,
            num_specials=len(tokenizer.specials),
            vocab=tokenizer.vocab,
        )

    def validation_metrics(self, means: LossMeans) -> dict[str, float]:
        return super().validation_metrics(means) | {"accuracy": means.accuracy}

    def evaluate(
        self,
        run: RunProtocol,
        corpus: Corpus,
        split: str,
        *,
        options: DecodingOptions | None,
        on_progress: ProgressCallback,
    ) -> dict[str, Any]:
        batches = make_split_batches(run, self, corpus, split)
        means = measure_loss(run, self, batches)
        on_progress(corpus.counts[split], corpus.counts[split])
        return {**token_metrics(means, batches), "accuracy": means.accuracy}

    def to_example(self, record: Record) -> Example:
        """Return the beginning of a text with one word masked, and that word."""
        words = record["text"].split()[:SAMPLE_WORDS]
        middle = len(words) // 2
        masked = [*words[:middle], MASK, *words[middle + 1 :]] if words else []
        return Example(" ".join(masked), words[middle] if words else "")

    def generate_samples(self, run: RunProtocol, records: Sequence[Record]) -> list[str]:
        """Return the best fill of each example's mask; a fill is one token, not always a word."""
        texts = [self.to_example(record).input for record in records]
        return [
            result.fills[0][0].token.strip() if result.fills else ""
            for result in fill_mask(run, texts, top_k=1)
        ]


@dataclass(frozen=True)
class Fill:
    """A candidate for a mask.

    token: text of the token, with the space before it
    probability: its probability
    """

    token: str
    probability: float


@dataclass(frozen=True)
class FilledText:
    """A line with its masks filled.

    text: the line with the most likely token at each mask
    fills: candidates of each mask, most likely first
    tokens: token ids that the model read
    """

    text: str
    fills: tuple[tuple[Fill, ...], ...] = ()
    tokens: tuple[int, ...] = ()


def fill_mask(
    run: RunProtocol,
    lines: Iterable[str],
    *,
    top_k: int = DEFAULT_TOP_K,
    batch_tokens: int = DecodingOptions.batch_tokens,
    chunk: int = LINES_PER_CHUNK,
    warnings: InputWarnings | None = None,
) -> Iterator[FilledText]:
    """Predict the tokens at `<mask>` in each line.

    Several masks of a line are predicted independently of each other. Special tokens are never
    predicted. A line that is too long is truncated; masks beyond the limit are not filled.

    Args:
        run: a run trained for `mlm`
        lines: texts with `<mask>`; a line without one is returned unchanged
        top_k: candidates per mask
        batch_tokens: tokens per batch, padding included
        chunk: lines that are read before the first output
        warnings: counts of lines read, truncated and without a mask, updated in place

    Yields:
        A result per line.
    """
    check_task(run, "mlm")
    if top_k < 1:
        raise UserError(f"top_k: expected a whole number from 1, got {top_k}")
    return _iter_filled(
        run, lines, top_k, batch_tokens, chunk, InputWarnings() if warnings is None else warnings
    )


def _iter_filled(
    run: RunProtocol,
    lines: Iterable[str],
    top_k: int,
    batch_tokens: int,
    chunk: int,
    warnings: InputWarnings,
) -> Iterator[FilledText]:
    max_length, options = int(run.recipe.max_length), DecodingOptions(batch_tokens=batch_tokens)
    for texts in iter_chunks(lines, chunk):
        sentences: dict[int, Sentence] = {}
        for index, text in enumerate(texts):
            if MASK not in text:
                warnings.num_unmasked += bool(text.strip())
                continue
            ids = run.tokenizer.encode_masked(text)
            warnings.num_truncated += len(ids) > max_length - 2
            sentences[index] = Sentence((START, *ids[: max_length - 2], END), limit=1)
        indices, rows = list(sentences), list(sentences.values())
        results: dict[int, FilledText] = {}
        for batch in batch_sentences(rows, options):
            tokens = [rows[number].prefix for number in batch]
            for number, fills in zip(batch, _predict_masks(run, tokens, top_k), strict=True):
                text = _insert_fills(texts[indices[number]], fills, run.tokenizer)
                results[indices[number]] = FilledText(text, fills, rows[number].prefix)
        for index, text in enumerate(texts):
            warnings.num_lines += 1
            yield results.get(index, FilledText(text))


def _predict_masks(
    run: RunProtocol, rows: Sequence[tuple[int, ...]], top_k: int
) -> Iterator[tuple[tuple[Fill, ...], ...]]:
    """Yield the candidates of each mask of each row."""
    tokenizer = run.tokenizer
    num_specials = len(tokenizer.specials)
    inputs, mask = pad_tokens(rows, model_device(run.model))
    with torch.inference_mode():
        logits = run.model(inputs, mask=mask)
    for row, ids in enumerate(rows):
        positions = [index for index, token in enumerate(ids) if token == tokenizer.mask_id]
        probabilities = logits[row, positions].cpu().double().softmax(-1)[:, num_specials:]
        best = probabilities.topk(min(top_k, probabilities.shape[1]))
        yield tuple(
            tuple(
                Fill(tokenizer.engine.decode([token + num_specials]), probability)
                for token, probability in zip(tokens, values, strict=True)
            )
            for tokens, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )


def _insert_fills(text: str, fills: tuple[tuple[Fill, ...], ...], tokenizer: Tokenizer) -> str:
    """Replace the masks of a text by their most likely tokens.

    A token of `bpe` and `unigram` brings its own space, so spaces before a mask are dropped.
    """
    first, *rest = text.split(MASK)
    filled = first
    for index, piece in enumerate(rest):
        if index >= len(fills):  # beyond the length limit
            filled += MASK + piece
            continue
        before = filled.rstrip(" ") if tokenizer.has_prefix_space else filled
        token = fills[index][0].token
        filled = before + (token if before else token.lstrip(" ")) + piece
    return filled
