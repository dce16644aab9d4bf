"""Beam search: several hypotheses for each sentence, the best of them at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from addnorm.decode.greedy import Hypothesis, make_hypothesis
from addnorm.decode.options import DecodingOptions
from addnorm.decode.sampling import log_normalizer, stable_topk
from addnorm.decode.stepper import Sentence, Stepper
from addnorm.kernels.precision import widest_float


@dataclass
class FinishedHypotheses:
    """The best hypotheses that have ended, `beam` for each of B sentences, best first.

    ranks: (B, beam), scores divided by the penalty, what they are ordered by; -inf is no hypothesis
    scores, lengths: (B, beam)
    tokens: (B, beam, steps)
    """

    ranks: Tensor
    scores: Tensor
    lengths: Tensor
    tokens: Tensor

    @classmethod
    def empty(cls, like: Tensor, beam: int, steps: int) -> "FinishedHypotheses":
        """For the sentences of `like`, (B, ...)."""
        ranks = like.new_full((len(like), beam), -torch.inf)
        lengths = torch.zeros_like(ranks, dtype=torch.long)
        return cls(ranks, ranks, lengths, lengths.new_zeros(len(like), beam, steps))

    def add(self, ranks: Tensor, scores: Tensor, tokens: Tensor) -> None:
        """Candidates, (B, C) and (B, C, step); those of rank -inf are none."""
        length, steps = tokens.shape[2], self.tokens.shape[2]
        tokens = torch.nn.functional.pad(tokens, (0, steps - length))
        lengths = torch.full_like(ranks, length, dtype=torch.long)
        ranks = torch.cat((self.ranks, ranks), 1)
        # Of equal ones the one that ended first, or was the better candidate.
        order = ranks.sort(dim=-1, descending=True, stable=True).indices[:, : self.ranks.shape[1]]
        self.ranks = ranks.gather(1, order)
        self.scores = torch.cat((self.scores, scores), 1).gather(1, order)
        self.lengths = torch.cat((self.lengths, lengths), 1).gather(1, order)
        self.tokens = gather_rows(torch.cat((self.tokens, tokens), 1), order)

    def select(self, rows: Tensor) -> "FinishedHypotheses":
        """The pool of some sentences only."""
        return FinishedHypotheses(
            self.ranks[rows], self.scores[rows], self.lengths[rows], self.tokens[rows]
        )

    def hypotheses(self, nbest: int, end: int) -> list[list[Hypothesis]]:
        """The best of each sentence, best first."""
        columns = (self.ranks, self.scores, self.lengths, self.tokens)
        rows = zip(*(column[:, :nbest].tolist() for column in columns), strict=True)
        return [
            [
                make_hypothesis(tokens[:length], score, end)
                for rank, score, length, tokens in zip(*row, strict=True)
                if rank > -torch.inf
            ]
            for row in rows
        ]


def beam_search(
    stepper: Stepper, sentences: Sequence[Sentence], options: DecodingOptions
) -> list[list[Hypothesis]]:
    """The `nbest` best hypotheses of each sentence, by score / penalty(length), best first.

    Of 2 * beam candidates at each step, those among the first `beam` that end, or have reached the
    limit, go to the pool; the best `beam` of the others go on. Sentences leave when they are done.
    """
    beam, nbest = options.beam, options.nbest
    logits = stepper.start()
    device = logits.device
    scores = torch.zeros(
        len(sentences), 1, dtype=widest_float(device), device=device
    )  # (B, running)
    limits = torch.tensor([sentence.limit for sentence in sentences], device=device)
    tokens = torch.empty(len(sentences), 1, 0, dtype=torch.long, device=device)
    alive = torch.arange(len(sentences), device=device)
    pool = FinishedHypotheses.empty(scores, beam, int(limits.max()))
    found: list[list[Hypothesis]] = [[] for _ in sentences]
    sure = options.stop == "exact" or options.penalty(2) == options.penalty(1)
    mildest = scores.new_tensor([options.penalty(sentence.limit) for sentence in sentences])
    rival = (nbest if sure else beam) - 1  # the one in the pool that those who go on must beat
    for length in range(1, int(limits.max()) + 1):
        total = log_normalizer(logits, stepper.forbidden_tokens)
        values, token, parent = top_candidates(logits, total, scores, 2 * beam)  # (B, 2 beam)
        longer = torch.cat((gather_rows(tokens, parent), token[..., None]), 2)
        penalty, last = options.penalty(length), limits <= length
        ended = token == stepper.end
        finished = ended | last[:, None]
        finished[:, beam:] = False
        if bool(finished.any()):
            pool.add((values / penalty).masked_fill(~finished, -torch.inf), values, longer)
        # Those that go on: ended ones sink to the end, the others keep their order.
        values, order = values.masked_fill(ended, -torch.inf).sort(
            dim=-1, descending=True, stable=True
        )
        values, order = values[:, :beam], order[:, :beam]
        done = last | (pool.ranks[:, rival] >= values[:, 0] / (mildest if sure else penalty))
        leave = bool(done.any())
        if leave:
            best = pool.select(done.nonzero()[:, 0]).hypotheses(nbest, stepper.end)
            for place, hypotheses in zip(alive[done].tolist(), best, strict=True):
                found[place] = hypotheses
        stay = (~done).nonzero()[:, 0]
        if not len(stay):
            break
        if length == 1:
            stepper.expand_beams(beam)
        if leave:
            stepper.select_sentences(stay)
        stepper.reorder_beams(parent.gather(1, order)[stay])
        tokens, scores = gather_rows(longer, order)[stay], values[stay]
        if leave:
            alive, limits, pool = alive[stay], limits[stay], pool.select(stay)
            mildest = mildest[stay]
        logits = stepper.step(tokens[..., -1].flatten())
    return found


def top_candidates(
    logits: Tensor, total: Tensor, scores: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of each sentence: score, token and which hypothesis, (B, count) each.

    logits, total: (B * running, vocab) and (B * running, 1), a log-probability is their difference
    scores: (B, running)

    Of equal ones, that of the better hypothesis, then the lower token.
    """
    values, token = stable_topk(logits, min(count, logits.shape[1]))  # (B * running, per row)
    values = (values - total).to(scores).view(*scores.shape, -1) + scores[..., None]
    per_row = values.shape[2]
    values, place = stable_topk(values.flatten(1), count)
    token = token.view(len(scores), -1).gather(1, place)
    return values, token, place // per_row


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of (B, N, T) by their number, (B, M), as (B, M, T)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
