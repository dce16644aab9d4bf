"""Choice of the next token: argmax, deterministic top-k, and filtered sampling."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.decode.options import DecodingOptions
from addnorm.kernels.cross_entropy_rows import logsumexp
from addnorm.kernels.device_dtypes import widest_float


def log_normalizer(logits: Tensor, forbidden_tokens: list[int]) -> Tensor:
    """Return log sum exp of each row, then set forbidden tokens to -inf in place.

    The normalizer includes the forbidden tokens, so logits minus it are the model's own
    log-probabilities.

    Args:
        logits: (rows, vocab) logits, changed in place
        forbidden_tokens: token ids that are never generated

    Returns:
        (rows, 1) log normalizers.
    """
    total = logsumexp(logits)[:, None]
    if not bool(torch.isfinite(total).all()):
        raise UserError(
            "the logits of the model are not finite, its training diverged; use an earlier "
            "checkpoint"
        )
    logits[:, forbidden_tokens] = -torch.inf
    return total


def argmax_tokens(logits: Tensor) -> Tensor:
    """Return the token with the largest logit of each row, (rows); ties go to the lowest id."""
    if logits.is_cpu and logits.dtype in (torch.float32, torch.float64):
        # NumPy's argmax is vectorized, torch's is not.
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def stable_topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row and their columns; ties go to the lowest column.

    Rows with fewer than k columns are padded with -inf.

    Args:
        x: (rows, columns) values
        k: number of values

    Returns:
        Values and columns, (rows, k) each, in descending order.

    >>> stable_topk(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 2)[1]
    tensor([[1, 2]])
    """
    columns = x.shape[1]
    if columns <= k:
        values, index = x.sort(dim=-1, descending=True, stable=True)
        padding = (0, k - columns)
        return (
            torch.nn.functional.pad(values, padding, value=-torch.inf),
            torch.nn.functional.pad(index, padding),
        )
    values, index = x.topk(k + 1)
    # The order of equal values in topk is undefined. If value k + 1 equals value k, a tie crosses
    # the cut, and only a full stable sort decides which of them are returned.
    has_tie = (values[:, k] == values[:, k - 1]) & (values[:, k] > -torch.inf)
    if bool(has_tie.any()):
        full = x[has_tie].sort(dim=-1, descending=True, stable=True)
        values[has_tie], index[has_tie] = full.values[:, : k + 1], full.indices[:, : k + 1]
    index, order = index[:, :k].sort(-1)
    values, again = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, index.gather(1, again)


def filter_tokens(logits: Tensor, options: DecodingOptions) -> tuple[Tensor, Tensor]:
    """Return the sampling distribution of each row.

    Filters apply in this order: temperature, top_k, top_p, min_p.

    Args:
        logits: (rows, vocab) logits
        options: the filters

    Returns:
        Probabilities, 0 for dropped tokens, and token ids, (rows, N) each.
    """
    scaled = logits.to(widest_float(logits.device)) / (options.temperature or 1.0)
    columns = logits.shape[1]
    if options.top_k is None and options.top_p is None:  # needs no sorting
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
    """Sample a token of each row by inverse transform.

    Args:
        logits: (rows, vocab) logits
        uniform: (rows) draws from [0, 1)
        options: the filters

    Returns:
        (rows) token ids.
    """
    p, index = filter_tokens(logits, options)
    sums = p.cumsum(-1)
    total = sums[:, -1:].contiguous()
    # Rounding may bring the threshold up to the total; below it, a token with p > 0 is found.
    below = torch.minimum(uniform.to(sums)[:, None] * total, total.nextafter(total.new_zeros(())))
    return index.gather(1, torch.searchsorted(sums, below, right=True))[:, 0]


def uniform_draws(seed: int, numbers: Sequence[tuple[int, int]], steps: int) -> Tensor:
    """Return uniform draws from [0, 1), (rows, steps), with one random stream per row.

    The draws of a row depend on the seed and its number only, not on the batch.

    Args:
        seed: seed of sampling
        numbers: (sentence, sample) of each row
        steps: draws per row
    """
    streams = [np.random.default_rng(derive_seed(seed, "draw", *number)) for number in numbers]
    return torch.from_numpy(np.stack([stream.random(steps) for stream in streams]))
