"""Beam search.

At each step every running hypothesis of a sentence is extended by one token. Of all extensions the
2 * beam best are candidates (twice the beam, since up to half of them may end):

    candidates that end, among the first `beam`   ->  finished hypotheses, ranked by score / penalty
    the best `beam` that do not end               ->  running hypotheses of the next step

A sentence is done when no running hypothesis can beat the finished ones. It then leaves the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from addnorm.decode.greedy import Hypothesis, make_hypothesis
from addnorm.decode.options import DecodingOptions
from addnorm.decode.sampling import log_normalizer, stable_topk
from addnorm.decode.stepper import Sentence, Stepper
from addnorm.kernels.device_dtypes import widest_float


@dataclass
class FinishedHypotheses:
    """The best finished hypotheses, `beam` for each of B sentences, best first.

    ranks: (B, beam) scores divided by the length penalty; -inf marks an empty slot
    scores: (B, beam) sums of log-probabilities
    lengths: (B, beam) numbers of tokens
    tokens: (B, beam, steps) token ids
    """

    ranks: Tensor
    scores: Tensor
    lengths: Tensor
    tokens: Tensor

    @classmethod
    def empty(cls, like: Tensor, beam: int, steps: int) -> "FinishedHypotheses":
        """Return empty slots for B sentences.

        Args:
            like: (B, ...) tensor with the dtype of the scores
            beam: slots per sentence
            steps: maximum number of tokens
        """
        ranks = like.new_full((len(like), beam), -torch.inf)
        lengths = torch.zeros_like(ranks, dtype=torch.long)
        return cls(ranks, ranks, lengths, lengths.new_zeros(len(like), beam, steps))

    def add(self, ranks: Tensor, scores: Tensor, tokens: Tensor) -> None:
        """Insert candidates and keep the best.

        Args:
            ranks: (B, C) ranks; candidates of rank -inf are ignored
            scores: (B, C) scores
            tokens: (B, C, step) token ids
        """
        length, steps = tokens.shape[2], self.tokens.shape[2]
        tokens = torch.nn.functional.pad(tokens, (0, steps - length))
        lengths = torch.full_like(ranks, length, dtype=torch.long)
        ranks = torch.cat((self.ranks, ranks), 1)
        # Stable: of equal ranks, the one that ended first, or the better candidate, wins.
        order = ranks.sort(dim=-1, descending=True, stable=True).indices[:, : self.ranks.shape[1]]
        self.ranks = ranks.gather(1, order)
        self.scores = torch.cat((self.scores, scores), 1).gather(1, order)
        self.lengths = torch.cat((self.lengths, lengths), 1).gather(1, order)
        self.tokens = gather_rows(torch.cat((self.tokens, tokens), 1), order)

    def select(self, rows: Tensor) -> "FinishedHypotheses":
        """Return the hypotheses of some sentences, given by their indices, (S)."""
        return FinishedHypotheses(
            self.ranks[rows], self.scores[rows], self.lengths[rows], self.tokens[rows]
        )

    def hypotheses(self, nbest: int, end: int) -> list[list[Hypothesis]]:
        """Return the `nbest` hypotheses of each sentence, best first."""
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
    """Return the `nbest` hypotheses of each sentence with the highest score / penalty(length).

    Args:
        stepper: model and cache, one row per sentence
        sentences: the sentences of the stepper
        options: beam, nbest, length penalty and stopping rule
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
    finished = FinishedHypotheses.empty(scores, beam, int(limits.max()))
    results: list[list[Hypothesis]] = [[] for _ in sentences]
    is_exact = options.stop == "exact" or options.penalty(2) == options.penalty(1)
    # Scores are negative and penalties grow with length: the penalty at the limit is the mildest.
    max_penalty = scores.new_tensor([options.penalty(sentence.limit) for sentence in sentences])
    rival = (nbest if is_exact else beam) - 1  # finished hypothesis that running ones must beat
    for length in range(1, int(limits.max()) + 1):
        total = log_normalizer(logits, stepper.forbidden_tokens)
        values, token, parent = top_candidates(logits, total, scores, 2 * beam)  # (B, 2 beam)
        longer = torch.cat((gather_rows(tokens, parent), token[..., None]), 2)
        penalty, last = options.penalty(length), limits <= length
        is_end = token == stepper.end
        is_finished = is_end | last[:, None]
        is_finished[:, beam:] = False
        if bool(is_finished.any()):
            ranks = (values / penalty).masked_fill(~is_finished, -torch.inf)
            finished.add(ranks, values, longer)
        # Running hypotheses of the next step: ended ones sort last, the others keep their order.
        values, order = values.masked_fill(is_end, -torch.inf).sort(
            dim=-1, descending=True, stable=True
        )
        values, order = values[:, :beam], order[:, :beam]
        bound = values[:, 0] / (max_penalty if is_exact else penalty)
        done = last | (finished.ranks[:, rival] >= bound)
        any_done = bool(done.any())
        if any_done:
            best = finished.select(done.nonzero()[:, 0]).hypotheses(nbest, stepper.end)
            for index, hypotheses in zip(alive[done].tolist(), best, strict=True):
                results[index] = hypotheses
        stay = (~done).nonzero()[:, 0]
        if not len(stay):
            break
        if length == 1:
            stepper.expand_beams(beam)
        if any_done:
            stepper.select_sentences(stay)
        stepper.reorder_beams(parent.gather(1, order)[stay])
        tokens, scores = gather_rows(longer, order)[stay], values[stay]
        if any_done:
            alive, limits, finished = alive[stay], limits[stay], finished.select(stay)
            max_penalty = max_penalty[stay]
        logits = stepper.step(tokens[..., -1].flatten())
    return results


def top_candidates(
    logits: Tensor, total: Tensor, scores: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best extensions of each sentence.

    Ties go to the better hypothesis, then to the lower token id.

    Args:
        logits: (B * running, vocab) logits
        total: (B * running, 1) log normalizers; logits - total are log-probabilities
        scores: (B, running) scores of the running hypotheses
        count: extensions per sentence

    Returns:
        Score, token id and index of the extended hypothesis, (B, count) each.
    """
    values, token = stable_topk(logits, min(count, logits.shape[1]))  # (B * running, per row)
    values = (values - total).to(scores).view(*scores.shape, -1) + scores[..., None]
    per_row = values.shape[2]
    values, position = stable_topk(values.flatten(1), count)
    token = token.view(len(scores), -1).gather(1, position)
    return values, token, position // per_row


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return rows of x, (B, N, T), selected by index, (B, M), as (B, M, T)."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
