"""Decoding of any number of sentences, in batches of similar length."""

from collections.abc import Iterator, Sequence

import torch

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END
from addnorm.decode.beam import beam_search
from addnorm.decode.engine import InferenceEngine
from addnorm.decode.greedy import Hypothesis, decode_greedy
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence, Stepper, make_stepper
from addnorm.models import Model


def decode(
    model: Model | InferenceEngine,
    sentences: Sequence[Sentence],
    options: DecodingOptions | None = None,
    *,
    end: int = END,
) -> list[list[Hypothesis]]:
    """Decode sentences, in their order.

    Args:
        model: a Seq2Seq or LanguageModel in eval mode, or an exported one
        sentences: prefixes, sources and length limits
        options: decoding options; greedy by default
        end: token that ends a text; other special tokens are never generated

    Returns:
        Hypotheses of each sentence, best first; samples in the order of their draws.

    >>> from addnorm.models import build
    >>> model = build(kind="lm", vocab=9, dim=8, depth=1, heads=2, seed=0).eval()
    >>> [[best]] = decode(model, [Sentence(prefix=(1, 5), limit=3)])
    >>> best.length <= 3, best.score < 0
    (True, True)
    """
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    for indices, hypotheses in decode_batches(model, sentences, options, end=end):
        for index, best in zip(indices, hypotheses, strict=True):
            results[index] = best
    return results


def decode_batches(
    model: Model | InferenceEngine,
    sentences: Sequence[Sentence],
    options: DecodingOptions | None = None,
    *,
    end: int = END,
) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
    """Decode batch by batch; yield the indices of the sentences and their hypotheses."""
    options = options or DecodingOptions()
    if model.training:
        raise UserError(
            "model: expected eval mode, got training mode; call model.eval() before decoding"
        )
    for indices in batch_sentences(sentences, options):
        batch = [sentences[index] for index in indices]
        with torch.inference_mode():
            if isinstance(model, InferenceEngine):
                hypotheses = model.decode_batch(batch, options, end)
            else:
                hypotheses = search(make_stepper(model, batch, end), batch, options)
        yield indices, hypotheses


def search(
    stepper: Stepper, sentences: Sequence[Sentence], options: DecodingOptions
) -> list[list[Hypothesis]]:
    """Run beam search, or greedy search or sampling with a beam of 1, over a stepper."""
    run = beam_search if options.beam > 1 else decode_greedy
    return run(stepper, sentences, options)


def batch_sentences(sentences: Sequence[Sentence], options: DecodingOptions) -> Iterator[list[int]]:
    """Yield the indices of sentences that share a batch, longest first."""
    order = sorted(
        range(len(sentences)),
        key=lambda index: (-len(sentences[index].source), -sentences[index].size, index),
    )
    batch: list[int] = []
    longest = 0
    for index in order:
        longest = max(longest, sentences[index].size)
        if (
            batch
            and (len(batch) + 1) * longest * options.hypotheses_per_sentence > options.batch_tokens
        ):
            yield batch
            batch, longest = [], sentences[index].size
        batch.append(index)
    if batch:
        yield batch
