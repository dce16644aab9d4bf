"""Training and scoring of one cell on a table; requires scikit-learn.

The cell uses the model, training loop and parameters of the estimators in `addnorm.tabular`, but on
the splits of the comparison and with a fixed number of epochs.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax

from addnorm.comparison.cell_job import Heartbeat, Job
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.outcomes import LossSummary
from addnorm.comparison.tasks.base import NUM_SAMPLES
from addnorm.comparison.tasks.table_data import (
    TEST,
    TRAIN,
    VALID,
    TableSplits,
    read_unweighted,
)
from addnorm.comparison.tasks.table_recipe import TableRecipe
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag, graceful_shutdown
from addnorm.core.rows import Row, write_rows
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import MODELS, TableBatch, TableModel, build_table_model
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.fit_run import TASKS
from addnorm.tabular.params import make_model_config, make_training_config
from addnorm.tabular.training.loop import WeightedBatch, build_model, fit_model
from addnorm.tabular.training.number_targets import NumberTarget
from addnorm.tabular.training.prediction import predict
from addnorm.tabular.training.targets import Target
from addnorm.tabular.training.torch_context import torch_context
from addnorm.train.callbacks import TrainCallback
from addnorm.train.device import pick_device
from addnorm.train.run_folder import CONFIG, ROWS

DEFAULT_MODEL = "ft_transformer"
"""Model of a cell: comparisons of arrangements are about attention as well as feed-forwards."""
AXES = ("wiring", "norm", "depth", "lr", "schedule")
"""Estimator parameters that a comparison varies."""
PARAMETERS = (
    *("model", "numeric", "dim", "heads", "ffn_dim", "activation", "dropout"),
    *("attention_dropout", "activation_dropout", "optimizer", "weight_decay", "average"),
    *("batch_size", "column_types", "target_scaling", "precision", "device"),
)
"""Estimator parameters that a spec may set for all cells. The others would treat cells unequally
(patience, validation split) or have no effect here."""


class TrainingStopped(Exception):
    """Raised inside the training loop to interrupt or pause it."""


def build_estimator(recipe: TableRecipe, kind: str, *, epochs: int, batch: int) -> Any:
    """Return an unfitted estimator with the parameters of a cell.

    Parameters that the model does not use are left out.

    Args:
        recipe: recipe of the cell
        kind: classify or regress
        epochs: number of epochs; early stopping is disabled, so that all cells get the same
        batch: rows per optimizer step
    """
    estimator = TASKS[kind](random_state=recipe.seed)
    name_of_model = recipe.params.get("model", DEFAULT_MODEL)
    model = MODELS.get(name_of_model)
    known = set(estimator.get_params()) - set(() if model is None else model.unused_fields)
    params = {"model": name_of_model}
    params |= {name: value for name, value in recipe.params.items() if name in known}
    axes = {name: getattr(recipe, name) for name in AXES}
    params |= {"max_epochs": epochs, "patience": epochs, "batch_size": batch}
    return estimator.set_params(**params | axes)


def build_on_tiny_table(recipe: TableRecipe) -> None:
    """Build the model of a recipe for a table of two numeric columns and a categorical one."""
    table = pd.DataFrame({"a": [0.5, 1.5], "b": [2.5, 1.0], "c": ["x", "y"]})
    encoder = TableEncoder.from_columns(*read_unweighted(table, None))
    estimator = build_estimator(recipe, "classify", epochs=1, batch=1)
    try:
        config = make_model_config(estimator, encoder, 2)
        build_table_model(config)
    except UserError as error:
        raise UserError(f"cannot build a table model with {recipe.wiring}: {error}") from None
    make_training_config(estimator, 2, model=config, seed=0)


class _CellCallback(TrainCallback):
    """Callback that keeps the metrics of each epoch, sends heartbeats and stops the fit.

    Args:
        heartbeat: receives the step and the loss after each epoch
        stop_flag: set by Ctrl-C or SIGTERM
        pause_step: step after which to stop; None trains to the end
        batches: batches per epoch
        rows: rows per epoch
    """

    def __init__(
        self,
        heartbeat: Heartbeat,
        stop_flag: StopFlag,
        pause_step: int | None,
        *,
        batches: int,
        rows: int,
    ) -> None:
        self.heartbeat, self.stop_flag, self.pause_step = heartbeat, stop_flag, pause_step
        self.batches, self.rows = batches, rows
        self.history: list[dict[str, float]] = []

    def on_epoch_end(self, epoch: int, num_epochs: int, metrics: Mapping[str, float]) -> None:
        step = epoch * self.batches
        self.history.append(dict(metrics))
        self.heartbeat.update(step, epoch * self.rows, metrics["train"])
        if self.stop_flag.requested or (self.pause_step is not None and step >= self.pause_step):
            raise TrainingStopped


def fit_cell(job: Job, recipe: TableRecipe, heartbeat: Heartbeat) -> CellResult | None:
    """Train a cell and score it; return None if it was interrupted or paused.

    There are no checkpoints: an interrupted cell starts again and ends with the same bits.
    """
    start = time.monotonic()
    recipe.save(job.folder / CONFIG)
    table = TableSplits.read(Path(recipe.data), job.score)
    scaling = recipe.params.get("target_scaling", "auto")
    target, rows = table.build_target(scaling), len(table.splits[TRAIN])
    batches = math.ceil(rows / table.batch)
    epochs = math.ceil(recipe.steps / batches)
    estimator = build_estimator(recipe, table.kind, epochs=epochs, batch=table.batch)
    columns, weights = read_unweighted(table.inputs(TRAIN), table.types or estimator.column_types)
    encoder = TableEncoder.from_columns(columns, weights)
    device = pick_device(estimator.device)
    train, valid = (
        WeightedBatch(
            encoder.encode(table.inputs(part)),
            target.encode(table.target_values(part)),
            torch.ones(len(table.splits[part])),
        )
        for part in (TRAIN, VALID)
    )
    with (
        graceful_shutdown() as stop_flag,
        torch_context(threads=None, seed=derive_seed(recipe.seed, "fit")),
    ):
        config = make_model_config(estimator, encoder, target.outputs)
        model = build_model(config, train, target=target, seed=recipe.seed, device=device)
        callback = _CellCallback(heartbeat, stop_flag, job.pause_step, batches=batches, rows=rows)
        history = callback.history
        with _write_rows_on_exit(job, history, batches) as status:
            fit_model(
                model,
                train.to(device),
                valid.to(device),
                target=target,
                config=make_training_config(estimator, rows, model=config, seed=recipe.seed),
                reference=train.cells.select_rows(slice(0, 64)).to(device),
                callback=callback,
            )
    if status.stopped and (stop_flag.requested or len(history) < epochs):
        return None
    losses = [row["valid"] for row in history if math.isfinite(row["valid"])]
    done = len(history) == epochs and bool(losses)
    reference = train.cells.select_rows(slice(0, 64)).to(device)
    is_scored = done and job.score is not None
    return CellResult(
        "done" if done else "diverged",
        "" if done else f"a loss was not finite in epoch {len(history) + 1}",
        step=len(history) * batches,
        loss=min(losses) if done else math.nan,
        lowest=min(losses, default=math.nan),
        scores=_compute_scores(model, encoder, table, recipe, reference) if is_scored else {},
        samples=_format_samples(model, encoder, table, target, reference) if is_scored else (),
        tokens=len(history) * rows,
        seconds=time.monotonic() - start,
        rate=heartbeat.rate,
        parameters=sum(weight.numel() for weight in model.parameters()),
        recent=LossSummary.from_rows(_loss_rows(history, batches)).recent,
    )


@dataclass
class _FitStatus:
    stopped: bool = False


@contextmanager
def _write_rows_on_exit(
    job: Job, history: list[dict[str, float]], batches: int
) -> Iterator[_FitStatus]:
    """Write the losses of the finished epochs when the block ends, also if it fails."""
    status = _FitStatus()
    try:
        yield status
    except TrainingStopped:
        status.stopped = True
    except UserError:
        if history:
            raise
        # The training loop raises if the loss is not finite in the first epoch; for a comparison
        # that is the result "diverged", not an error.
    finally:
        write_rows(job.folder / ROWS, _loss_rows(history, batches))


def _loss_rows(history: list[dict[str, float]], batches: int) -> list[Row]:
    return [
        {"step": int(row["epoch"]) * batches, "name": "loss", "value": row[part], "split": part}
        for row in history
        for part in (TRAIN, VALID)
    ]


def _compute_scores(
    model: TableModel,
    encoder: TableEncoder,
    table: TableSplits,
    recipe: TableRecipe,
    reference: TableBatch,
) -> dict[str, float]:
    """Score on the test rows, and on copies with removed or exchanged cells."""
    cells, expected = encoder.encode(table.inputs(TEST)), table.target_values(TEST)
    inputs = {"": cells}
    for kind in ("missing", "noise"):
        for fraction in getattr(recipe, kind):
            rng = torch.Generator().manual_seed(derive_seed(recipe.seed, kind, str(fraction)))
            size = (cells.num_rows, model.config.features)
            mask = torch.rand(size, generator=rng) < fraction
            others = cells.select_rows(torch.randperm(cells.num_rows, generator=rng))
            inputs[f", {kind} {fraction:g}"] = (
                cells.masked(mask) if kind == "missing" else cells.replace_cells(others, mask)
            )
    name, score = ("accuracy", _accuracy) if table.classes else ("r2", _r2)
    target = table.build_target(recipe.params.get("target_scaling", "auto"))
    return {
        f"{name}{suffix}": score(_predict(model, batch, reference), expected, target)
        for suffix, batch in inputs.items()
    }


def _predict(model: TableModel, cells: TableBatch, reference: TableBatch) -> np.ndarray:
    predictions: np.ndarray = predict(model, cells, reference).double().cpu().numpy()
    return predictions


def _accuracy(predictions: np.ndarray, expected: np.ndarray, _target: Target) -> float:
    return float((predictions.argmax(1) == expected).mean())


def _r2(predictions: np.ndarray, expected: np.ndarray, target: Target) -> float:
    assert isinstance(target, NumberTarget)
    total = float(((expected - expected.mean()) ** 2).sum())
    residual = float(((target.decode(predictions) - expected) ** 2).sum())
    return 1 - residual / max(total, 1e-12)


def _format_samples(
    model: TableModel,
    encoder: TableEncoder,
    table: TableSplits,
    target: Target,
    reference: TableBatch,
) -> tuple[str, ...]:
    """Return predictions for the first test rows: labels with probabilities, or numbers."""
    rows = table.inputs(TEST).iloc[:NUM_SAMPLES]
    predictions = _predict(model, encoder.encode(rows), reference)
    if isinstance(target, NumberTarget):
        return tuple(f"{value:.4g}" for value in target.decode(predictions))
    probabilities = softmax(predictions, axis=1)
    return tuple(f"{table.classes[row.argmax()]} ({row.max():.0%})" for row in probabilities)
