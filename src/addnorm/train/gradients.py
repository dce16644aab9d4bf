"""Gradients of one optimizer step.

The loss of a step is the mean over all target tokens of its batches, in all processes:

    loss = sum of token losses / number of target tokens

Each replica of the model runs its own rows of every batch. DDP and FSDP average the gradients over
the replicas, so each scales its sum by `world.replicas / number of target tokens`, and the average
is the gradient of the loss above. The step therefore depends neither on the number of processes nor
on how the tokens are divided into accumulated batches, except for rounding.

Waiting for a device. Loss and gradient norm stay on the device as `StepMetrics`; the trainer reads
them when it needs them, because reading makes the host wait until the device has caught up.

Random numbers: the generators are seeded at every step, from the seed of the run, the step and the
replica. A resumed run draws the same dropout masks, and no checkpoint stores a generator's state.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from addnorm.core.seeds import derive_seed
from addnorm.data.batches import Batch
from addnorm.kernels.device_dtypes import widest_float
from addnorm.measure import Nonfinite, first_nonfinite
from addnorm.measure.sites import unwrap_model
from addnorm.tasks import LossMeans
from addnorm.train.distributed import no_sync
from addnorm.train.session import Session
from addnorm.train.validation import autocast_context


@dataclass
class StepMetrics:
    """Loss and gradient norm of a step, on the device until they are read."""

    step: int
    batches: list[Batch]
    values: Tensor
    """(4,) sums of nll, correct and count over all processes, and the norm before clipping."""

    @cached_property
    def _numbers(self) -> list[float]:
        numbers: list[float] = self.values.tolist()
        return numbers

    @property
    def loss(self) -> float:
        """Mean loss; reading it waits for the device."""
        return LossMeans(*self._numbers[:3]).loss

    @property
    def gradient_norm(self) -> float:
        """Norm of the gradients before clipping; reading it waits for the device."""
        return self._numbers[3]

    @property
    def finite_loss(self) -> float:
        """The loss; NaN if it or the gradient norm is not finite."""
        is_finite = math.isfinite(self.loss) and math.isfinite(self.gradient_norm)
        return self.loss if is_finite else math.nan

    @cached_property
    def nonfinite(self) -> Tensor:
        """1.0 on the device if a value is not finite, else 0.0."""
        return (~self.values.isfinite().all()).float()

    @property
    def num_tokens(self) -> int:
        """Tokens that throughput counts."""
        return sum(batch.tokens for batch in self.batches)


def forward_backward(session: Session, batches: list[Batch], step: int) -> Tensor:
    """Compute the gradients of one step; return sums of nll, correct and count over processes."""
    world = session.world
    _seed_generators(session, step)
    session.optimizer.zero_grad()
    num_targets = sum(batch.count for batch in batches)
    totals = torch.zeros(3, dtype=widest_float(world.device), device=world.device)
    for number, batch in enumerate(batches, start=1):
        # DDP averages the gradients once, in the backward pass of the last batch.
        with nullcontext() if number == len(batches) else no_sync(session.objective):
            loss, sums = _forward_loss(session, batch, session.objective)
            (loss * (world.replicas / num_targets)).backward()
        totals += sums
    return world.sum_over_replicas(totals)


def locate_nonfinite(session: Session, batches: list[Batch], step: int) -> Nonfinite | None:
    """Repeat the forward and backward pass of a step, and return where the first NaN appears.

    The weights and random numbers are those of the step, so the pass usually fails at the same
    place. None if it does not fail again.
    """
    objective = unwrap_model(session.objective)  # the gradients are not averaged

    def compute_loss() -> Tensor:
        _seed_generators(session, step)
        return torch.stack([_forward_loss(session, each, objective)[0] for each in batches]).sum()

    return first_nonfinite(session.model, compute_loss)


def _forward_loss(session: Session, batch: Batch, objective: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the summed loss and the metric sums of this process's rows of a batch."""
    world = session.world
    shard = batch.shard(world.replica, world.replicas).to(world.device)
    with autocast_context(session.recipe, world):
        loss, sums = objective(*shard.inputs_and_targets)
    return loss, sums


def _seed_generators(session: Session, step: int) -> None:
    world = session.world
    seed = derive_seed(session.recipe.seed, "step", step, world.replica)
    # Not torch.manual_seed: it also seeds every other device, which is slow.
    torch.default_generator.manual_seed(seed)
    if world.device.type != "cpu":
        torch.get_device_module(world.device).manual_seed(seed)
