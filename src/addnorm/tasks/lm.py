"""Language modeling: the next token of a running text, with a decoder-only model."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from addnorm.core.cards import Card
from addnorm.data.batches import TEXTS_PER_CHUNK, Row, RowContext, concat_ids, iter_chunks
from addnorm.data.corpus import CONTINUES, Corpus, Record
from addnorm.data.demo import lm as demo
from addnorm.data.readers.text_files import TextUnit
from addnorm.data.tokenizer import START
from addnorm.decode.batching import decode
from addnorm.decode.engine import length_limits
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence
from addnorm.tasks.base import (
    Example,
    ProgressCallback,
    RunProtocol,
    Score,
    Splits,
    TextTask,
    register,
)
from addnorm.tasks.evaluation import make_split_batches, measure_loss, safe_exp, token_metrics
from addnorm.tasks.line_inference import (
    LINES_PER_CHUNK,
    GeneratedText,
    InputWarnings,
    check_task,
    decode_hypotheses,
)

PROMPT_CHARACTERS = 40
SAMPLE_TOKENS = 60
"""New tokens of a comparison's samples."""


@register(
    Card(
        name="lm",
        title="Language model",
        formula="loss = -sum_t log p(x_t | x_<t)",
        paper="Bengio et al., A Neural Probabilistic Language Model, 2003",
        summary="Predict the next token of a text with a decoder.",
    )
)
class LanguageModeling(TextTask):
    """Language modeling of running text.

    loss = -sum_t log p(x_t | x_<t)

    x: a block of `max_length` tokens of the running text, in which every document begins with START
    """

    noun, command = "language modeling", "generate"
    columns, compatible_corpora = ("text",), ("mlm",)
    text_unit: ClassVar[TextUnit] = "document"
    demo_source = "documentation topics of the running Python (pydoc_data.topics)"
    model_kind, attention_stacks = "lm", ("decoder",)
    primary_score = Score(
        "bits_per_character", "bits per character", "Bits per character: lower is better."
    )

    def make_records(self, seed: int, languages: Sequence[str]) -> tuple[Splits, dict[str, Any]]:
        return demo.make(seed)

    def encode_rows(self, records: Iterator[Record], context: RowContext) -> Iterator[Row]:
        """Yield blocks of the concatenated documents; every token but the first is a target.

        START also precedes a piece of a document at the beginning of a pool, so that every token of
        the corpus is a target.
        """
        rest = np.empty(0, np.int32)
        length, is_first = context.max_length, True
        for chunk in iter_chunks(records, TEXTS_PER_CHUNK):
            texts = []
            for record, ids in zip(chunk, context.encode_pieces(chunk), strict=True):
                begins = is_first or CONTINUES not in record
                texts.append(concat_ids(START, ids) if begins else ids)
                is_first = False
            rest = np.concatenate((rest, *texts))
            end = (len(rest) - 1) // length * length  # of the last full block
            for start in range(0, end, length):
                block = rest[start : start + length + 1]
                yield block[:-1], block[1:]
            rest = rest[end:]
        if len(rest) > 1:
            yield rest[:-1], rest[1:]

    def evaluate(
        self,
        run: RunProtocol,
        corpus: Corpus,
        split: str,
        *,
        options: DecodingOptions | None,
        on_progress: ProgressCallback,
    ) -> dict[str, Any]:
        words = characters = size = 0
        for record in corpus.records(split):
            text = record["text"]
            words += len(text.split())
            characters += len(text)
            size += len(text.encode("utf-8", errors="replace"))
        batches = make_split_batches(run, self, corpus, split)
        means = measure_loss(run, self, batches)
        nll = means.loss * int(means.count)
        on_progress(corpus.counts[split], corpus.counts[split])
        return {
            **token_metrics(means, batches),
            "word_perplexity": safe_exp(nll / max(words, 1)),
            "bits_per_character": nll / math.log(2) / max(characters, 1),
            "bits_per_byte": nll / math.log(2) / max(size, 1),
            "words": words,
            "characters": characters,
            "bytes": size,
        }

    def to_example(self, record: Record) -> Example:
        """Return the beginning of a text, which has no single correct continuation."""
        return Example(make_prompt(record["text"]), "")

    def generate_samples(self, run: RunProtocol, records: Sequence[Record]) -> list[str]:
        prompts = [make_prompt(record["text"]) for record in records]
        options = DecodingOptions(max_new=SAMPLE_TOKENS)
        return [texts[0].text for texts in generate_texts(run, prompts, options)]


def make_prompt(text: str) -> str:
    """Return the beginning of a text on one line, as a prompt."""
    return " ".join(text.split())[:PROMPT_CHARACTERS]


def generate_texts(
    run: RunProtocol,
    prompts: Iterable[str],
    options: DecodingOptions | None = None,
    *,
    allow_blank: bool = False,
    chunk: int = LINES_PER_CHUNK,
    warnings: InputWarnings | None = None,
) -> Iterator[list[GeneratedText]]:
    """Continue prompts, in their order.

    Args:
        run: a run trained for `lm`
        prompts: beginnings of texts. Of a prompt that is too long, the end is read. Where positions
            are limited, half of them are left for new tokens
        options: decoding options; sampling at temperature 1 by default
        allow_blank: whether an empty prompt starts a document, instead of giving one empty text
        chunk: prompts that are read before the first output
        warnings: counts of prompts read and truncated, updated in place

    Yields:
        `options.nbest` texts that begin with each prompt; `ended` where the model began another
        document.
    """
    check_task(run, "lm")
    return _iter_generated(
        run,
        prompts,
        options or DecodingOptions(temperature=1.0),
        allow_blank,
        chunk,
        InputWarnings() if warnings is None else warnings,
    )


def _iter_generated(
    run: RunProtocol,
    prompts: Iterable[str],
    options: DecodingOptions,
    allow_blank: bool,
    chunk: int,
    warnings: InputWarnings,
) -> Iterator[list[GeneratedText]]:
    _, positions = length_limits(run.model)
    max_prompt = options.max_source
    if positions is not None:
        new_tokens = min(options.max_new, max(1, positions // 2))
        max_prompt = min(max_prompt, positions + 1 - new_tokens)
    for texts in iter_chunks(prompts, chunk):
        sentences: dict[int, Sentence] = {}
        for index, ids in enumerate(run.tokenizer.encode(texts)):
            if not allow_blank and not texts[index].strip():
                continue
            warnings.num_truncated += len(ids) >= max_prompt
            prefix = (START, *ids[max(0, len(ids) - max_prompt + 1) :])
            left = options.max_new if positions is None else positions - len(prefix) + 1
            limit = min(options.max_new, left)
            sentences[index] = Sentence(prefix, limit, number=warnings.num_lines + index)
        # In training, START of the next document follows a document: it serves as the end token.
        results = decode(run.model, list(sentences.values()), options, end=START)
        outputs = decode_hypotheses(run.tokenizer, list(sentences.values()), results)
        by_index: dict[int, list[GeneratedText]] = {}
        for index, generated in zip(sentences, outputs, strict=True):
            [decoded] = run.tokenizer.decode([list(sentences[index].prefix[1:])])
            by_index[index] = [
                replace(each, text=_join_continuation(texts[index], decoded, each.text))
                for each in generated
            ]
        for index in range(len(texts)):
            warnings.num_lines += 1
            yield by_index.get(index, [GeneratedText("")])


def _join_continuation(prompt: str, decoded_prompt: str, text: str) -> str:
    """Replace the decoded prompt at the beginning of a text by the original one."""
    if not text.startswith(decoded_prompt):
        return text
    return prompt.rstrip(" ") + text[len(decoded_prompt) :]
