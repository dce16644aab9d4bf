"""How far does a step of the optimizer move the weights?"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from addnorm.measure.sharded_norms import local_shard, sum_of_squares, sum_over_shards


def clone_parameters(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """What `update_squares` compares with: this process's part of each parameter."""
    return [local_shard(parameter).detach().clone() for parameter in parameters]


def squared_update_norms(before: Sequence[Tensor], after: Sequence[nn.Parameter]) -> Tensor:
    """The squared lengths of each parameter's change and of the parameter before, (2, P), from
    which `update_ratio` is made.

    value = |w_after - w_before| / |w_before|,  |w| = sqrt(sum_p sum_i w[p, i]^2)

    w: all parameters of a site (see `parameters_of`), or all of the model, around one step of the
        optimizer, with decay and all else that the step does
    value: left out where all weights were 0; about 1e-3 is usual

    Karpathy, CS231n: Convolutional Neural Networks for Visual Recognition, 2015, "Neural Networks
    Part 3", ratio of weights and updates.
    """
    changes = [
        sum_of_squares(local_shard(new).detach().float() - old.float())
        for new, old in zip(after, before, strict=True)
    ]
    lengths = [sum_of_squares(old) for old in before]
    return torch.stack((sum_over_shards(changes, after), sum_over_shards(lengths, after)))
