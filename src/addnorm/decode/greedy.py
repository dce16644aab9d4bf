"""One hypothesis for each row, a token at a time: greedy decoding and sampling."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from addnorm.decode.options import Options
from addnorm.decode.sampling import chances, drawn, likeliest, log_total
from addnorm.decode.stepper import Sentence, Stepper
from addnorm.kernels.precision import wide


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


def walk(
    stepper: Stepper, sentences: Sequence[Sentence], options: Options
) -> list[list[Hypothesis]]:
    """Greedy, or `nbest` draws a sentence. Rows that have ended leave the batch at once."""
    copies = options.nbest if options.samples else 1
    logits, end = stepper.start(), stepper.end
    rows, device = len(sentences) * copies, logits.device
    if copies > 1:
        spread = torch.arange(len(sentences), device=device).repeat_interleave(copies)
        stepper.reorder(spread)
        logits = logits[spread]
    limits = torch.tensor([s.limit for s in sentences for _ in range(copies)], device=device)
    steps = int(limits.max())
    if options.samples:
        numbers = [(s.number, copy) for s in sentences for copy in range(copies)]
        chance = chances(options.seed, numbers, steps)
    made = torch.full((rows, steps), end, device=device)
    scores = torch.zeros(rows, dtype=wide(logits.device), device=device)
    alive = torch.arange(rows, device=device)
    for step in range(steps):
        total = log_total(logits, stepper.never)
        if options.samples:
            token = drawn(logits, chance[alive.cpu(), step].to(scores), options)
        else:
            token = likeliest(logits)
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
        hypothesis(row[:limit], score, end)
        for row, limit, score in zip(made.tolist(), limits.tolist(), scores.tolist(), strict=True)
    ]
    return [written[at : at + copies] for at in range(0, rows, copies)]


def hypothesis(tokens: list[int], score: float, end: int) -> Hypothesis:
    """From tokens up to the end, and perhaps beyond it."""
    ended = end in tokens
    return Hypothesis(tuple(tokens[: tokens.index(end)] if ended else tokens), score, ended)
