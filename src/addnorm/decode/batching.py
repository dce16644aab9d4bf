"""Decode any number of sentences: batches of similar lengths, answers in the given order."""

from collections.abc import Iterator, Sequence

import torch

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END
from addnorm.decode.beam import beam_search
from addnorm.decode.greedy import Hypothesis, decode_greedy
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence, make_stepper
from addnorm.models import Model


def decode(
    model: Model,
    sentences: Sequence[Sentence],
    options: DecodingOptions | None = None,
    *,
    end: int = END,
) -> list[list[Hypothesis]]:
    """Hypotheses of each sentence, best first; with sampling, in the order of the draws.

    end: the token that ends a text. Pad, start, end and unknown are otherwise never written.

    >>> from addnorm.models import build
    >>> model = build(kind="lm", vocab=9, dim=8, depth=1, heads=2, seed=0).eval()
    >>> [[best]] = decode(model, [Sentence(prefix=(1, 5), limit=3)])
    >>> best.length <= 3, best.score < 0
    (True, True)
    """
    found: list[list[Hypothesis]] = [[] for _ in sentences]
    for places, hypotheses in decode_batches(model, sentences, options, end=end):
        for place, best in zip(places, hypotheses, strict=True):
            found[place] = best
    return found


def decode_batches(
    model: Model,
    sentences: Sequence[Sentence],
    options: DecodingOptions | None = None,
    *,
    end: int = END,
) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
    """The same, batch by batch: which sentences, and their hypotheses."""
    options = options or DecodingOptions()
    if model.training:
        raise UserError("a model in training drops at random; call model.eval() before decoding")
    for places in batch_sentences(sentences, options):
        batch = [sentences[place] for place in places]
        with torch.inference_mode():
            stepper = make_stepper(model, batch, end)
            search = beam_search if options.beam > 1 else decode_greedy
            yield places, search(stepper, batch, options)


def batch_sentences(sentences: Sequence[Sentence], options: DecodingOptions) -> Iterator[list[int]]:
    """Places of sentences that are decoded together, long ones first."""
    order = sorted(
        range(len(sentences)),
        key=lambda place: (-len(sentences[place].source), -sentences[place].size, place),
    )
    batch: list[int] = []
    longest = 0
    for place in order:
        longest = max(longest, sentences[place].size)
        if (
            batch
            and (len(batch) + 1) * longest * options.hypotheses_per_sentence > options.batch_tokens
        ):
            yield batch
            batch, longest = [], sentences[place].size
        batch.append(place)
    if batch:
        yield batch
