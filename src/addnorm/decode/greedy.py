"""One hypothesis for each row, a token at a time: greedy decoding and sampling."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from addnorm.decode.options import DecodingOptions
from addnorm.decode.sampling import argmax_tokens, log_normalizer, sample_tokens, uniform_draws
from addnorm.decode.stepper import Sentence, Stepper
from addnorm.kernels.precision import widest_float


@dataclass(frozen=True)
class Hypothesis:
    """What was written for a sentence.

    tokens: the new ones, without the prefix and without the end
    score: the sum of the model's log-probabilities of the new tokens, the end included
    ended: whether an end was written; False where the limit cut it off
    """

    tokens: tuple[int, ...]
    score: float
    ended: bool

    @property
    def length(self) -> int:
        """Tokens that the score is made of."""
        return len(self.tokens) + self.ended


def decode_greedy(
    stepper: Stepper, sentences: Sequence[Sentence], options: DecodingOptions
) -> list[list[Hypothesis]]:
    """Greedy, or `nbest` draws a sentence. Rows that have ended leave the batch at once."""
    copies = options.nbest if options.is_sampling else 1
    logits, end = stepper.start(), stepper.end
    rows, device = len(sentences) * copies, logits.device
    if copies > 1:
        spread = torch.arange(len(sentences), device=device).repeat_interleave(copies)
        stepper.reorder(spread)
        logits = logits[spread]
    limits = torch.tensor([s.limit for s in sentences for _ in range(copies)], device=device)
    steps = int(limits.max())
    if options.is_sampling:
        numbers = [(s.number, copy) for s in sentences for copy in range(copies)]
        chance = uniform_draws(options.seed, numbers, steps)
    made = torch.full((rows, steps), end, device=device)
    scores = torch.zeros(rows, dtype=widest_float(logits.device), device=device)
    alive = torch.arange(rows, device=device)
    for step in range(steps):
        total = log_normalizer(logits, stepper.forbidden_tokens)
        if options.is_sampling:
            token = sample_tokens(logits, chance[alive.cpu(), step].to(scores), options)
        else:
            token = argmax_tokens(logits)
        scores[alive] += (logits.gather(1, token[:, None]) - total)[:, 0].to(scores)
        made[alive, step] = token
        going = (token != end) & (limits[alive] > step + 1)
        if not bool(going.all()):
            going = going.nonzero()[:, 0]
            alive, token = alive[going], token[going]
            if not len(alive):
                break
            stepper.reorder(going)
        logits = stepper.step(token)
    written = [
        make_hypothesis(row[:limit], score, end)
        for row, limit, score in zip(made.tolist(), limits.tolist(), scores.tolist(), strict=True)
    ]
    return [written[at : at + copies] for at in range(0, rows, copies)]


def make_hypothesis(tokens: list[int], score: float, end: int) -> Hypothesis:
    """From tokens up to the end, and perhaps beyond it."""
    ended = end in tokens
    return Hypothesis(tuple(tokens[: tokens.index(end)] if ended else tokens), score, ended)
