"""A network that is trained part by part: weights, optimizer state and averaged weights."""

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import TableModel
from addnorm.tabular.training.loop import (
    MAX_GRADIENT_NORM,
    TrainingConfig,
    WeightedBatch,
    compute_losses,
)
from addnorm.tabular.training.prediction import autocast
from addnorm.tabular.training.targets import Target
from addnorm.train.ema import EMA
from addnorm.train.optimizers.base import make_optimizer


class NetworkStream:
    """Optimizer steps on one batch after another."""

    def __init__(
        self, model: TableModel, target: Target, config: TrainingConfig, device: torch.device
    ) -> None:
        self.model, self.target, self.config, self.device = model, target, config, device
        self.optimizer = make_optimizer(
            config.optimizer, model, lr=config.lr, weight_decay=config.weight_decay
        )
        self.average = EMA(model, config.average)
        self.steps = 0
        self.model.train()

    def step(self, batch: WeightedBatch, *, mean_weight: float, factor: float) -> torch.Tensor:
        """Make one optimizer step; return the sums of weighted losses and weights, (2).

        Args:
            batch: rows on the device
            mean_weight: expected weight of a row
            factor: factor of the peak learning rate
        """
        self.steps += 1
        self.optimizer.set_lr(factor)
        with autocast(self.config.precision, self.device):
            losses = compute_losses(self.model, batch, self.target)
            loss, weight = (losses * batch.weights).sum(), batch.weights.sum()
        torch.autograd.backward(loss / (mean_weight * len(batch.weights)))
        nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.after_step()
        self.average.update(self.steps)
        return torch.stack((loss.detach(), weight)).double()

    @property
    def lr(self) -> float:
        """Current learning rate."""
        return float(self.optimizer.optimizers[0].param_groups[0]["lr"])

    def averaged(self) -> Any:
        """Return a copy of the network with the averaged weights, for prediction."""
        with self.average.swapped_in():
            model = deepcopy(self.model)
        return model.eval()


def shuffled_batches(
    rows: WeightedBatch, size: int, *, seed: int, number: int
) -> Iterator[WeightedBatch]:
    """Yield the rows of a part in random order.

    Args:
        rows: the part
        size: largest number of rows per batch
        seed: seed of the fit
        number: number of the part, for its order
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "part", number))
    order = torch.randperm(len(rows.weights), generator=generator)
    for index in order.tensor_split(max(1, math.ceil(len(order) / size))):
        yield rows.rows(index)
