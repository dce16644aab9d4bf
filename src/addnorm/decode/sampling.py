"""Which token comes next: the likeliest, the k likeliest, or one drawn from what is left."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.decode.options import DecodingOptions
from addnorm.kernels.cross_entropy_rows import logsumexp
from addnorm.kernels.precision import widest_float


def log_normalizer(logits: Tensor, forbidden_tokens: list[int]) -> Tensor:
    """log sum exp of each row, (rows, 1): a logit minus it is the model's own log-probability.

    Afterwards, and in place, tokens that are never written are made impossible.
    """
    total = logsumexp(logits)[:, None]
    if not bool(torch.isfinite(total).all()):
        raise UserError(
            "the model answers with numbers that are not finite: its training diverged; take an "
            "earlier checkpoint"
        )
    logits[:, forbidden_tokens] = -torch.inf
    return total


def argmax_tokens(logits: Tensor) -> Tensor:
    """The token with the largest logit of each row, (rows); of equal ones the first."""
    if logits.is_cpu and logits.dtype in (torch.float32, torch.float64):
        # numpy compares several numbers at once, which torch does not.
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def stable_topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row and where they stand, (rows, k); of equal ones the first ones.

    Rows with fewer than k columns are filled up with -inf.

    >>> stable_topk(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 2)[1]
    tensor([[1, 2]])
    """
    columns = x.shape[1]
    if columns <= k:
        values, index = x.sort(dim=-1, descending=True, stable=True)
        more = (0, k - columns)
        return (
            torch.nn.functional.pad(values, more, value=-torch.inf),
            torch.nn.functional.pad(index, more),
        )
    values, index = x.topk(k + 1)
    # topk says nothing about equal values. One more than wanted shows whether some were left out.
    crowded = (values[:, k] == values[:, k - 1]) & (values[:, k] > -torch.inf)
    if bool(crowded.any()):
        full = x[crowded].sort(dim=-1, descending=True, stable=True)
        values[crowded], index[crowded] = full.values[:, : k + 1], full.indices[:, : k + 1]
    index, order = index[:, :k].sort(-1)
    values, again = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, index.gather(1, again)


def filter_tokens(logits: Tensor, options: DecodingOptions) -> tuple[Tensor, Tensor]:
    """Probabilities of the tokens that may be drawn, and which tokens these are, (rows, N) each.

    In this order: temperature, then top_k, then top_p of what is left, then min_p. What is dropped
    has probability 0; the rest sums to 1.
    """
    scaled = logits.to(widest_float(logits.device)) / (options.temperature or 1.0)
    columns = logits.shape[1]
    if options.top_k is None and options.top_p is None:  # no order is needed
        values, index = scaled, torch.arange(columns, device=logits.device).expand_as(scaled)
    else:
        values, index = stable_topk(scaled, min(options.top_k or columns, columns))
    p = values.softmax(-1)
    if options.top_p is not None:
        before = p.cumsum(-1) - p
        p = p.masked_fill(before >= options.top_p, 0.0)
    if options.min_p is not None:
        p = p.masked_fill(p < options.min_p * p.amax(-1, keepdim=True), 0.0)
    return p / p.sum(-1, keepdim=True), index


def sample_tokens(logits: Tensor, uniform: Tensor, options: DecodingOptions) -> Tensor:
    """One token of each row, (rows); chance: (rows), from 0 to 1, what decides."""
    p, index = filter_tokens(logits, options)
    sums = p.cumsum(-1)
    total = sums[:, -1:].contiguous()
    # Below the total, whatever rounding does: the place found then always has a probability.
    below = torch.minimum(uniform.to(sums)[:, None] * total, total.nextafter(total.new_zeros(())))
    return index.gather(1, torch.searchsorted(sums, below, right=True))[:, 0]


def uniform_draws(seed: int, numbers: Sequence[tuple[int, int]], steps: int) -> Tensor:
    """Evenly spread numbers from 0 to 1, (rows, steps), a stream of its own for each row.

    What a row gets follows from the seed and its number alone, whatever else is in the batch.
    """
    streams = [np.random.default_rng(derive_seed(seed, "draw", *number)) for number in numbers]
    return torch.from_numpy(np.stack([stream.random(steps) for stream in streams]))
