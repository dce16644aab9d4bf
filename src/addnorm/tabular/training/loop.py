"""Training loop for table models.

`train_epochs` minimizes any loss over weighted rows; `fit_model` (supervised) and the estimators'
`pretrain` (self-supervised) supply the loss.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.models.base import WiredModule
from addnorm.models.tabular import TableBatch, TableConfig, TableModel, build_table_model
from addnorm.tabular.training.prediction import autocast, predict
from addnorm.tabular.training.pretraining import Pretrained
from addnorm.tabular.training.targets import Target
from addnorm.tabular.training.time_limit import TimeLimit
from addnorm.train.callbacks import TrainCallback
from addnorm.train.ema import EMA
from addnorm.train.optimizers.base import make_optimizer
from addnorm.train.schedules.base import make_schedule

CALIBRATION_ROWS = 256
"""Rows that data-dependent wirings are calibrated on before training."""
MAX_GRADIENT_NORM = 1.0
"""Gradients are clipped to this norm."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of the training loop; see the parameters of the estimators."""

    optimizer: str
    lr: float
    weight_decay: float
    schedule: str
    batch_size: int
    max_epochs: int
    patience: int
    average: float
    max_seconds: float | None
    precision: str
    seed: int


class WeightedBatch(NamedTuple):
    """Encoded rows with their targets and weights."""

    cells: TableBatch
    targets: Tensor
    """(rows) or (rows, targets) encoded targets."""
    weights: Tensor
    """(rows) positive weights."""

    def rows(self, index: Tensor) -> "WeightedBatch":
        """Select rows by index."""
        return WeightedBatch(
            self.cells.select_rows(index), self.targets[index], self.weights[index]
        )

    def subsample(self, max_rows: int) -> "WeightedBatch":
        """Return at most `max_rows` evenly spaced rows; equal rows are adjacent."""
        rows = len(self.weights)
        return self.rows(torch.arange(min(max_rows, rows)) * rows // min(max_rows, rows))

    def to_arrays(self) -> list[np.ndarray]:
        """Return the fields as NumPy arrays, which pickle without torch."""
        return [field.cpu().numpy() for field in (*self.cells, self.targets, self.weights)]

    @classmethod
    def from_arrays(cls, arrays: Sequence[np.ndarray]) -> "WeightedBatch":
        """Rebuild a batch from the output of `to_arrays`."""
        *cells, targets, weights = map(torch.from_numpy, arrays)
        return cls(TableBatch(*cells), targets, weights)

    def to(self, device: torch.device) -> "WeightedBatch":
        """Move to a device, with numbers and weights in float32."""
        return WeightedBatch(
            self.cells.to(device), self.targets.to(device), self.weights.float().to(device)
        )


History = list[dict[str, float]]
"""One dict per epoch with the keys epoch, train, valid (if validated), lr and seconds."""


def build_model(
    config: TableConfig,
    rows: WeightedBatch,
    *,
    target: Target | None,
    seed: int,
    device: torch.device,
    pretrained: Pretrained | None = None,
) -> TableModel:
    """Build a model and initialize it from training rows.

    The rows determine the bins of the numeric embedding, the bias of the head and the calibration
    of the wiring.

    Args:
        config: architecture
        rows: training rows
        target: initializes the bias of the head; None for pre-training
        seed: seed of the initialization
        device: device of the model
        pretrained: weights to start from
    """
    model = build_table_model(config, seed=derive_seed(seed, "start"))
    model.tokens.fit_bins(rows.cells, rows.weights)
    if target is not None:
        with torch.no_grad():
            model.head.bias.copy_(target.initial_bias(rows.targets, rows.weights))
    if pretrained is not None:
        pretrained.load_into(model)
    model.to(device).calibrate_on(rows.subsample(CALIBRATION_ROWS).cells.to(device))
    return model


def fit_model(
    model: TableModel,
    train: WeightedBatch,
    valid: WeightedBatch | None,
    *,
    target: Target,
    config: TrainingConfig,
    reference: TableBatch,
    callback: TrainCallback | None = None,
) -> History:
    """Train a model in place on a target; return the history.

    The model ends with the averaged weights of the epoch with the lowest validation loss, or of the
    last epoch without validation rows.
    """

    def compute_loss(batch: WeightedBatch) -> tuple[Tensor, Tensor]:
        losses = compute_losses(model, batch, target)
        return (losses * batch.weights).sum(), batch.weights.sum()

    def validate() -> float:
        assert valid is not None
        outputs = predict(model, valid.cells, reference, precision=config.precision)
        losses = target.loss(outputs, valid.targets)
        return float((losses * valid.weights).sum() / valid.weights.sum())

    return train_epochs(
        model,
        train,
        compute_loss=compute_loss,
        validate=None if valid is None else validate,
        validation_rows=0 if valid is None else len(valid.weights),
        config=config,
        callback=callback,
    )


def compute_losses(model: TableModel, batch: WeightedBatch, target: Target) -> Tensor:
    """Return the training loss of each row, (B): the mean of the losses of its members."""
    members = model.config.members
    if members == 1:
        return target.loss(model(batch.cells), batch.targets)
    outputs = model.forward_members(batch.cells).flatten(0, 1)
    losses = target.loss(outputs, batch.targets.repeat_interleave(members, 0))
    return losses.unflatten(0, (-1, members)).mean(1)


def train_epochs(
    model: WiredModule,
    train: WeightedBatch,
    *,
    compute_loss: Callable[[WeightedBatch], tuple[Tensor, Tensor]],
    validate: Callable[[], float] | None,
    config: TrainingConfig,
    validation_rows: int = 0,
    callback: TrainCallback | None = None,
) -> History:
    """Minimize a loss over weighted rows, in place; return the history.

    Args:
        model: model to train; ends with the averaged weights of the best epoch
        train: rows of one epoch
        compute_loss: maps a batch to the weighted sum of its losses and the sum of its weights
        validate: returns the validation loss of the model; without it, the last epoch is the best
        config: optimizer, schedule and limits
        validation_rows: rows that `validate` predicts; a time limit includes their prediction
        callback: its `on_epoch_end` is called with the row of every epoch

    Raises:
        UserError: if the loss is not finite in the first epoch
    """
    rows = len(train.weights)
    batches = max(1, math.ceil(rows / config.batch_size))
    steps = batches * config.max_epochs
    mean_weight = float(train.weights.mean())
    optimizer = make_optimizer(
        config.optimizer, model, lr=config.lr, weight_decay=config.weight_decay
    )
    schedule, average = make_schedule(config.schedule), EMA(model, config.average)
    parameters = list(model.parameters())  # a walk over all modules takes as long as clipping
    limit = TimeLimit(config.max_seconds, validation_steps=validation_rows * batches / rows)
    epochs_without_progress = 0
    best_loss, best_state = math.inf, _clone_state(model)
    history: History = []
    model.train()
    for epoch in range(1, config.max_epochs + 1):
        generator = torch.Generator().manual_seed(derive_seed(config.seed, "order", epoch))
        order = torch.randperm(rows, generator=generator).to(train.weights.device)
        total = torch.zeros(2, dtype=torch.float64, device=order.device)  # losses, weights
        for index in order.tensor_split(batches):
            elapsed = limit.fraction()
            limit.steps += 1
            # A time limit advances the schedule, so that the learning rate decays fully within it.
            optimizer.set_lr(schedule.factor(max(limit.steps, math.ceil(elapsed * steps)), steps))
            with autocast(config.precision, order.device):
                loss, weight = compute_loss(train.rows(index))
            # Divide by the expected weight of the batch, not by its own: a batch of light rows
            # must count less than a batch of heavy ones.
            torch.autograd.backward(loss / (mean_weight * len(index)))
            nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
            optimizer.step()
            optimizer.zero_grad()
            model.after_step()
            average.update(limit.steps)
            total += torch.stack((loss.detach(), weight)).double()
            if elapsed >= 1:
                break
        seconds = limit.seconds
        row = {"epoch": epoch, "train": float(total[0] / total[1])}
        if not math.isfinite(row["train"]):
            if history:
                warnings.warn(
                    f"the training loss is not finite in epoch {epoch} at lr={config.lr}; keeping "
                    f"the {'best' if validate else 'last'} epoch before it",
                    RuntimeWarning,
                    stacklevel=2,
                )
            break
        with average.swapped_in():
            if validate is not None:
                model.eval()
                with limit.validation():
                    row["valid"] = validate()
                model.train()
            if validate is None or row["valid"] < best_loss:
                best_loss, best_state = row.get("valid", 0.0), _clone_state(model)
                epochs_without_progress = 0
            else:
                epochs_without_progress += 1
        lr = optimizer.optimizers[0].param_groups[0]["lr"]
        history.append(row | {"lr": lr, "seconds": seconds})
        if callback is not None:
            callback.on_epoch_end(epoch, config.max_epochs, history[-1])
        if limit.fraction() >= 1 or (
            validate is not None and epochs_without_progress >= config.patience
        ):
            break
    if not history:
        raise UserError(
            f"lr: expected a finite training loss in the first epoch, got lr={config.lr}; try a "
            "tenth of it"
        )
    model.load_state_dict(best_state)
    model.eval()
    return history


def _clone_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
