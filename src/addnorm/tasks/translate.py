"""Translation: a source sentence to a target sentence, with an encoder-decoder model."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.data.batches import TEXTS_PER_CHUNK, Row, RowContext, concat_ids, iter_chunks
from addnorm.data.corpus import Corpus, Record
from addnorm.data.demo import translate as demo
from addnorm.data.demo.dates import make_dates
from addnorm.data.tokenizer import END, PAD, START
from addnorm.decode.batching import decode
from addnorm.decode.engine import length_limits
from addnorm.decode.metrics import translation_scores
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence
from addnorm.tasks.base import (
    Example,
    Masks,
    ProgressCallback,
    RunProtocol,
    Score,
    Splits,
    TextTask,
    make_token_mask,
    register,
)
from addnorm.tasks.evaluation import make_split_batches, measure_loss, token_metrics
from addnorm.tasks.line_inference import (
    LINES_PER_CHUNK,
    GeneratedText,
    InputWarnings,
    check_task,
    decode_hypotheses,
)


@register(
    Card(
        name="translate",
        title="Translation",
        formula="loss = -sum_t log p(y_t | y_<t, x)",
        paper="Sutskever et al., Sequence to Sequence Learning with Neural Networks, 2014, "
        "arXiv 1409.3215",
        summary="Translate a source text with an encoder and a decoder.",
    )
)
class Translate(TextTask):
    """Translation of a source text.

    loss = -sum_t log p(y_t | y_<t, x)

    x: source tokens and END
    y: START, target tokens and END; START is given, not predicted
    """

    noun, command = "translation", "translate"
    columns = ("source", "target")
    demo_source = "phrases formatted in two locales by babel (Unicode CLDR)"
    model_kind, is_encoder_decoder = "seq2seq", True
    attention_stacks = ("encoder", "decoder", "cross")
    label_smoothing = 0.1
    primary_score = Score(  # BLEU is 0 on phrases of a few words
        "chrf",
        "chrF",
        "chrF, from 0 to 100, is the overlap of character n-grams with the expected text; "
        "higher is better.",
        digits=1,
    )
    evaluation_options = DecodingOptions(beam=5)
    comparison_options = DecodingOptions()  # greedy, because every cell decodes

    def make_records(self, seed: int, languages: Sequence[str]) -> tuple[Splits, dict[str, Any]]:
        if isinstance(languages, str) or len(languages) != 2:
            raise UserError(
                f"languages: expected two locales, got {languages!r}; try languages=('en', 'de')"
            )
        return demo.make(seed, (languages[0], languages[1]))

    def make_comparison_demo(self) -> tuple[Splits, dict[str, Any]]:
        """Return a corpus of dates, which small models learn within a few hundred steps."""
        return make_dates()

    def encode_rows(self, records: Iterator[Record], context: RowContext) -> Iterator[Row]:
        for chunk in iter_chunks(records, TEXTS_PER_CHUNK):
            sources = context.encode(record["source"] for record in chunk)
            targets = context.encode(record["target"] for record in chunk)
            for source, target in zip(sources, targets, strict=True):
                if not len(source) or not len(target):
                    context.skipped["with an empty side left out"] += 1
                elif max(len(source) + 1, len(target) + 2) > context.max_length:
                    context.skipped[f"longer than {context.max_length} tokens left out"] += 1
                else:
                    yield concat_ids(source, END), concat_ids(START, target, END)

    def select_targets(self, targets: Tensor) -> Tensor:
        """Return the targets without START, which is given."""
        return targets[:, 1:]

    def model_inputs(self, inputs: Tensor, targets: Tensor) -> tuple[tuple[Tensor, ...], Masks]:
        target = targets[:, :-1].clamp(min=PAD)  # IGNORE_INDEX becomes padding
        return (inputs, target), {
            "source_mask": make_token_mask(inputs),
            "target_mask": make_token_mask(target),
        }

    def evaluate(
        self,
        run: RunProtocol,
        corpus: Corpus,
        split: str,
        *,
        options: DecodingOptions | None,
        on_progress: ProgressCallback,
    ) -> dict[str, Any]:
        assert options is not None
        outputs, warnings = [], InputWarnings()
        sources = (record["source"] for record in corpus.records(split))
        for texts in translate_texts(run, sources, options, warnings=warnings):
            outputs.append(texts[0].text)
            on_progress(1, corpus.counts[split])
        targets = [record["target"] for record in corpus.records(split)]
        batches = make_split_batches(run, self, corpus, split)
        means = measure_loss(run, self, batches)
        return {
            **translation_scores(outputs, targets),
            "beam": options.beam,
            "length_penalty": options.length_penalty,
            **token_metrics(means, batches),
            **({"cut": warnings.num_truncated} if warnings.num_truncated else {}),
        }

    def to_example(self, record: Record) -> Example:
        return Example(record["source"], record["target"])

    def generate_samples(self, run: RunProtocol, records: Sequence[Record]) -> list[str]:
        sources = (record["source"] for record in records)
        return [texts[0].text for texts in translate_texts(run, sources, self.comparison_options)]


def translate_texts(
    run: RunProtocol,
    lines: Iterable[str],
    options: DecodingOptions | None = None,
    *,
    prefixes: Iterable[str] | None = None,
    chunk: int = LINES_PER_CHUNK,
    warnings: InputWarnings | None = None,
) -> Iterator[list[GeneratedText]]:
    """Translate lines, in their order.

    Args:
        run: a run trained for `translate`
        lines: texts to translate; a line that is too long is truncated
        options: decoding options; a beam of 5 by default
        prefixes: one text per line with which each translation begins
        chunk: lines that are read before the first output
        warnings: counts of lines read and truncated, updated in place

    Yields:
        The `options.nbest` best translations of each line; one empty text for an empty line.
    """
    check_task(run, "translate")
    return _iter_translations(
        run,
        lines,
        options or DecodingOptions(beam=5),
        None if prefixes is None else iter(prefixes),
        chunk,
        InputWarnings() if warnings is None else warnings,
    )


def _iter_translations(
    run: RunProtocol,
    lines: Iterable[str],
    options: DecodingOptions,
    prefixes: Iterator[str] | None,
    chunk: int,
    warnings: InputWarnings,
) -> Iterator[list[GeneratedText]]:
    source_limit, max_target = length_limits(run.model)
    max_source = min(options.max_source, source_limit or options.max_source)
    for texts in iter_chunks(lines, chunk):
        first = warnings.num_lines
        begins = [""] * len(texts)
        if prefixes is not None:
            begins = _take_prefixes(prefixes, len(texts), first)
            if len(texts) < chunk:  # the last chunk: report a mismatch before decoding it
                _check_no_more_prefixes(prefixes, first + len(texts))
        sentences: dict[int, Sentence] = {}
        pairs = zip(run.tokenizer.encode(texts), run.tokenizer.encode(begins), strict=True)
        for index, (ids, prefix) in enumerate(pairs):
            if not texts[index].strip() or not ids:
                continue
            warnings.num_truncated += len(ids) >= max_source
            limit = min(options.max_new, int(options.ratio * len(ids) + options.extra))
            left = limit if max_target is None else max_target - len(prefix)
            if left < 1:
                raise UserError(
                    f"prefix of line {first + index + 1}: expected fewer than {max_target} "
                    f"tokens, the most that this model writes, got {len(prefix)}; shorten it"
                )
            sentences[index] = Sentence(
                (START, *prefix),
                max(1, min(limit, left)),
                (*ids[: max_source - 1], END),
                first + index,
            )
        results = decode(run.model, list(sentences.values()), options)
        outputs = decode_hypotheses(run.tokenizer, list(sentences.values()), results)
        by_index = dict(zip(sentences, outputs, strict=True))
        for index in range(len(texts)):
            warnings.num_lines += 1
            yield by_index.get(index, [GeneratedText("")])
    if prefixes is not None:
        _check_no_more_prefixes(prefixes, warnings.num_lines)


def _check_no_more_prefixes(prefixes: Iterator[str], lines: int) -> None:
    if next(prefixes, None) is not None:
        raise UserError(f"prefixes: expected one per line, got more than {lines}; remove some")


def _take_prefixes(prefixes: Iterator[str], count: int, num_read: int) -> list[str]:
    taken = list(islice(prefixes, count))
    if len(taken) < count:
        raise UserError(
            f"prefixes: expected one per line, got {num_read + len(taken)} and more lines; use an "
            "empty line where nothing is forced"
        )
    return taken
