"""Metric `update_ratio`: relative change of the weights in one optimizer step."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from addnorm.measure.sharded_norms import local_shard, sum_of_squares, sum_over_shards


def clone_parameters(
    parameters: Iterable[nn.Parameter], max_entries: int | None = None
) -> list[Tensor]:
    """Return copies of the local shards, which `squared_update_norms` compares with."""
    return [_sample(parameter, max_entries).clone() for parameter in parameters]


def squared_update_norms(
    before: Sequence[Tensor], after: Sequence[nn.Parameter], max_entries: int | None = None
) -> Tensor:
    """Return the squared norms from which `update_ratio` is computed.

    value = |w_after - w_before| / |w_before|,  |w| = sqrt(sum_p sum_i w[p, i]^2)

    w: all parameters of a site (see `site_parameters`), or all of the model, before and after one
        optimizer step, weight decay included
    value: about 1e-3 is common; there is no row if all weights were 0

    Args:
        before: result of `clone_parameters` before the step
        after: the parameters after the step
        max_entries: limit of `clone_parameters`; the norms of a sample are scaled to the parameter

    Returns:
        (2, P) squared norms of the change and of the old value of each parameter.

    Karpathy, CS231n: Convolutional Neural Networks for Visual Recognition, 2015, "Neural Networks
    Part 3", ratio of weights and updates.
    """
    changes, lengths = [], []
    for new, old in zip(after, before, strict=True):
        factor = local_shard(new).numel() / max(old.numel(), 1)
        change = sum_of_squares(_sample(new, max_entries).float() - old.float())
        length = sum_of_squares(old)
        changes.append(change if factor == 1 else change * factor)
        lengths.append(length if factor == 1 else length * factor)
    return torch.stack((sum_over_shards(changes, after), sum_over_shards(lengths, after)))


def _sample(parameter: nn.Parameter, max_entries: int | None) -> Tensor:
    """Return the local shard, or evenly spaced entries of it if it has more than `max_entries`."""
    values = local_shard(parameter).detach()
    if max_entries is None or values.numel() <= max_entries:
        return values
    return values.flatten()[:: -(-values.numel() // max_entries)]
