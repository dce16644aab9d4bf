"""A running average of the weights, which often answers better than the last ones."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from addnorm.train.distributed import shard_like


class EMA:
    """Exponential moving average of all parameters.

    a <- d * a + (1 - d) * w,    d = min(decay, (1 + t) / (10 + t))

    a, w: average and weight, of one shape; a starts at the first weights
    decay: below 1; the second term lets the average follow the first steps more closely
    t: updates so far

    Polyak and Juditsky 1992; the start: TensorFlow's ExponentialMovingAverage with num_updates.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = dict(model.named_parameters())
        self.values = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Follow the weights after update number `step`, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, value in self.values.items():
            value.lerp_(self.weights[name], 1 - decay)

    @torch.no_grad()
    def load(self, values: Mapping[str, Tensor]) -> None:
        """Go on from values that were saved."""
        for name, value in self.values.items():
            value.copy_(shard_like(values[name], value))

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model answers with the average inside."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # Contents, not storage: a sharded weight is gathered from the storage it began with.
        for name, weight in self.weights.items():
            kept = weight.detach().clone()
            weight.copy_(self.values[name])
            self.values[name].copy_(kept)
