"""Greedy decoding and sampling: one hypothesis per row, one token at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from addnorm.decode.options import DecodingOptions
from addnorm.decode.sampling import argmax_tokens, log_normalizer, sample_tokens, uniform_draws
from addnorm.decode.stepper import Sentence, Stepper
from addnorm.kernels.device_dtypes import widest_float


@dataclass(frozen=True)
class Hypothesis:
    """A decoded sentence.

    tokens: new token ids, without the prefix and the end token
    score: sum of the log-probabilities of the new tokens, the end token included
    ended: whether the end token was generated before the length limit
    """

    tokens: tuple[int, ...]
    score: float
    ended: bool

    @property
    def length(self) -> int:
        """Number of tokens in the score."""
        return len(self.tokens) + self.ended


def decode_greedy(
    stepper: Stepper, sentences: Sequence[Sentence], options: DecodingOptions
) -> list[list[Hypothesis]]:
    """Decode greedily, or draw `nbest` samples per sentence; finished rows leave the batch."""
    copies = options.nbest if options.is_sampling else 1
    logits, end = stepper.start(), stepper.end
    rows, device = len(sentences) * copies, logits.device
    if copies > 1:
        source_rows = torch.arange(len(sentences), device=device).repeat_interleave(copies)
        stepper.reorder(source_rows)
        logits = logits[source_rows]
    limits = torch.tensor([s.limit for s in sentences for _ in range(copies)], device=device)
    steps = int(limits.max())
    if options.is_sampling:
        numbers = [(s.number, copy) for s in sentences for copy in range(copies)]
        uniform = uniform_draws(options.seed, numbers, steps)
    generated = torch.full((rows, steps), end, device=device)
    scores = torch.zeros(rows, dtype=widest_float(logits.device), device=device)
    alive = torch.arange(rows, device=device)
    for step in range(steps):
        total = log_normalizer(logits, stepper.forbidden_tokens)
        if options.is_sampling:
            token = sample_tokens(logits, uniform[alive.cpu(), step].to(scores), options)
        else:
            token = argmax_tokens(logits)
        scores[alive] += (logits.gather(1, token[:, None]) - total)[:, 0].to(scores)
        generated[alive, step] = token
        running = (token != end) & (limits[alive] > step + 1)
        if not bool(running.all()):
            rows_left = running.nonzero()[:, 0]
            alive, token = alive[rows_left], token[rows_left]
            if not len(alive):
                break
            stepper.reorder(rows_left)
        logits = stepper.step(token)
    hypotheses = [
        make_hypothesis(row[:limit], score, end)
        for row, limit, score in zip(
            generated.tolist(), limits.tolist(), scores.tolist(), strict=True
        )
    ]
    return [hypotheses[start : start + copies] for start in range(0, rows, copies)]


def make_hypothesis(tokens: list[int], score: float, end: int) -> Hypothesis:
    """Return a hypothesis from token ids, cut at the first end token."""
    ended = end in tokens
    return Hypothesis(tuple(tokens[: tokens.index(end)] if ended else tokens), score, ended)
