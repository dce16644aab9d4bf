"""Training on a table that is read in parts.

Every epoch reads the training rows again, row groups in random order, and shuffles them within
windows of `WINDOW_ROWS` rows. The best epoch on the validation rows is kept.
"""

import math
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import is_classifier

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.tabular.callbacks import make_fit_callback
from addnorm.tabular.dataset import FitData
from addnorm.tabular.params import (
    make_model_config,
    make_training_config,
    resolve_device,
    resolve_threads,
)
from addnorm.tabular.streaming.network_stream import NetworkStream, shuffled_batches
from addnorm.tabular.streaming.partial_fit import encode_labels
from addnorm.tabular.streaming.table_parts import TRAIN, TableParts
from addnorm.tabular.training.loop import History, WeightedBatch, build_model
from addnorm.tabular.training.prediction import predict
from addnorm.tabular.training.targets import reject_missing_targets
from addnorm.tabular.training.torch_context import torch_context
from addnorm.train.schedules.base import make_schedule

WINDOW_ROWS = 1 << 16
"""Rows that are shuffled together."""
MIN_SECONDS = 1e-3
"""Time that is left for training at least."""


@dataclass(frozen=True)
class PartsTraining:
    """What the epochs of a fit in parts need."""

    estimator: Any
    parts: TableParts
    data: FitData
    """Encoder and target, and the sample and the validation rows, encoded."""
    target: str
    """Name of the target column."""
    columns: list[str]
    """Names of the feature columns."""
    seed: int

    def run(self, training_rows: int, *, deadline: float) -> tuple[History, Any]:
        """Train for epochs over the table; return the history and the network of the best epoch.

        Args:
            training_rows: number of training rows of the table
            deadline: time of `time.monotonic` at which training ends
        """
        estimator, data = self.estimator, self.data
        device, fold = resolve_device(estimator), data.folds[0]
        config = make_model_config(estimator, data.encoder, data.target.outputs)
        training = make_training_config(estimator, training_rows, model=config, seed=self.seed)
        size, schedule = training.batch_size, make_schedule(training.schedule)
        total_steps, started = (
            math.ceil(training_rows / size) * training.max_epochs,
            time.monotonic(),
        )
        limit = max(deadline - started, MIN_SECONDS)
        best_loss, best, history, waited = math.inf, None, list[dict[str, float]](), 0
        seconds = None if math.isinf(limit) else limit
        with (
            torch_context(
                threads=resolve_threads(estimator),
                seed=derive_seed(self.seed, "fit"),
                device=device,
            ),
            closing(make_fit_callback(verbose=estimator.verbose, max_seconds=seconds)) as callback,
        ):
            model = build_model(
                config, fold.train, target=data.target, seed=self.seed, device=device
            )
            network = NetworkStream(model.float().to(device), data.target, training, device)
            for epoch in range(1, training.max_epochs + 1):
                total = torch.zeros(2, dtype=torch.float64, device=device)
                for batch in self._batches(size, epoch):
                    passed = (time.monotonic() - started) / limit
                    # A time limit advances the schedule, as in `train_epochs`.
                    step = max(network.steps + 1, math.ceil(min(1.0, passed) * total_steps))
                    factor = schedule.factor(min(step, total_steps), total_steps)
                    total += network.step(batch.to(device), mean_weight=1.0, factor=factor)
                    if passed >= 1:
                        break
                row = {"epoch": epoch, "train": float(total[0] / total[1])}
                if not math.isfinite(row["train"]):
                    break
                averaged = network.averaged()
                row |= {"valid": self._valid_loss(averaged), "lr": network.lr}
                row["seconds"] = time.monotonic() - started
                history.append(row)
                callback.on_epoch_end(epoch, training.max_epochs, row)
                waited += 1
                if row["valid"] < best_loss:
                    best_loss, best, waited = row["valid"], averaged, 0
                if waited >= training.patience or time.monotonic() - started >= limit:
                    break
        if best is None:
            raise UserError(
                f"lr: expected a finite training loss in the first epoch, got lr={training.lr}; "
                "try a tenth of it"
            )
        return history, best

    def _batches(self, size: int, epoch: int) -> Iterator[WeightedBatch]:
        """Yield the training rows of one epoch in shuffled batches."""
        rng = np.random.default_rng(derive_seed(self.seed, "row groups", epoch))
        for number, frame in enumerate(self._windows(rng.permutation(len(self.parts.pieces)))):
            y = encode_target(self.estimator, frame[self.target])
            rows = WeightedBatch(
                self.data.encoder.encode(frame[self.columns]),
                self.data.target.encode(y),
                torch.ones(len(frame), dtype=torch.float64),
            )
            seed = derive_seed(self.seed, "window", epoch)
            yield from shuffled_batches(rows, size, seed=seed, number=number)

    def _windows(self, order: np.ndarray) -> Iterator[Any]:
        """Yield frames of training rows, each of about `WINDOW_ROWS` rows."""
        import pandas

        frames, count = list[Any](), 0
        for part in self.parts.read(order):
            frame = part.frame[part.roles == TRAIN]
            if len(frame):
                frames.append(frame)
                count += len(frame)
            if count >= WINDOW_ROWS:
                yield pandas.concat(frames, ignore_index=True)
                frames, count = [], 0
        if frames:
            yield pandas.concat(frames, ignore_index=True)

    def _valid_loss(self, model: Any) -> float:
        rows = self.data.folds[0].valid
        assert rows is not None
        outputs = predict(model, rows.cells, self.data.reference).cpu()
        losses = self.data.target.loss(outputs, rows.targets)
        return float((losses * rows.weights).sum() / rows.weights.sum())


def encode_target(estimator: Any, y: Any) -> np.ndarray:
    """Return class codes or numbers; raise `UserError` for missing and infinite values."""
    reject_missing_targets(y)
    if is_classifier(estimator):
        return encode_labels(estimator, np.asarray(y))
    values = np.asarray(y, dtype=np.float64)
    if not np.isfinite(values).all():
        raise UserError("Input y contains infinity; drop those rows")
    return values
