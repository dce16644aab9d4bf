"""Exponential moving average of the weights, which often generalizes better than the last ones."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from addnorm.train.distributed import shard_like


class EMA:
    """Exponential moving average of all parameters.

    a <- d * a + (1 - d) * w,    d = min(decay, (1 + t) / (10 + t))

    a, w: average and weight, of equal shape; a is initialized with the initial weights
    decay: below 1; the second term of the minimum makes the average follow the first steps closely
    t: number of updates

    Polyak and Juditsky 1992; the second term:
    TensorFlow's ExponentialMovingAverage with num_updates.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = dict(model.named_parameters())
        self.values = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the averages after optimizer step `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, value in self.values.items():
            value.lerp_(self.weights[name], 1 - decay)

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Replace the averages by those of a checkpoint."""
        for name, value in self.values.items():
            value.copy_(shard_like(values[name], value))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Exchange weights and averages inside the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # Copy values instead of exchanging storages: FSDP gathers a weight from its own storage.
        for name, weight in self.weights.items():
            previous = weight.detach().clone()
            weight.copy_(self.values[name])
            self.values[name].copy_(previous)
