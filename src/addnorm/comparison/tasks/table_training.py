"""The fit of one cell to a table; all that the task of tables needs scikit-learn for."""

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

from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.job import Heartbeat, Job
from addnorm.comparison.tasks.base import NUM_SAMPLES
from addnorm.comparison.tasks.table import TableRecipe
from addnorm.comparison.tasks.table_data import (
    TEST,
    TRAIN,
    VALID,
    TableSplits,
    read_examples,
    read_unweighted,
)
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag, graceful_shutdown
from addnorm.core.rows import Row, write_rows
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import MODELS, TableBatch, TableModel, build_table_model
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.params import model_config, training_config
from addnorm.tabular.training.loop import (
    WeightedBatch,
    build_model,
    fit_model,
    predict,
    torch_context,
)
from addnorm.tabular.training.targets import NumberTarget, Target
from addnorm.train.callbacks import TrainCallback
from addnorm.train.device import pick_device
from addnorm.train.run_folder import CONFIG, ROWS

ESTIMATORS = {"classify": TabularTransformerClassifier, "regress": TabularTransformerRegressor}
AXES = ("wiring", "norm", "depth", "lr", "schedule")
"""Parameters of the estimator that a comparison varies."""
PARAMETERS = (
    *("model", "numeric", "dim", "heads", "ffn_dim", "activation", "dropout"),
    *("attention_dropout", "activation_dropout", "optimizer", "weight_decay", "average"),
    *("batch_size", "column_types", "target_scaling", "precision", "device"),
)
"""Those that are the same for all cells; what else an estimator has would not be fair, or is of no
use here."""


class TrainingStopped(Exception):
    """Somebody wants an end, or a look before it goes on."""


def build_estimator(recipe: TableRecipe, kind: str, *, epochs: int, batch: int) -> Any:
    """The estimator whose parameters a cell has; all get the same number of passes.

    Parameters are those of all arms: what means nothing to the model of one is left out there.
    """
    made = ESTIMATORS[kind](random_state=recipe.seed)
    model = MODELS.get(recipe.params.get("model", made.model))
    known = set(made.get_params()) - set(() if model is None else model.unused_fields)
    params = {name: value for name, value in recipe.params.items() if name in known}
    axes = {name: getattr(recipe, name) for name in AXES}
    params |= {"max_epochs": epochs, "patience": epochs, "batch_size": batch}
    return made.set_params(**params | axes)


def try_model(recipe: TableRecipe) -> None:
    """Build the model of a recipe for a table of two numbers and a category."""
    few = pd.DataFrame({"a": [0.5, 1.5], "b": [2.5, 1.0], "c": ["x", "y"]})
    encoder = TableEncoder.from_columns(*read_unweighted(few, None))
    chosen = build_estimator(recipe, "classify", epochs=1, batch=1)
    try:
        build_table_model(model_config(chosen, encoder, 2))
    except UserError as problem:
        raise UserError(f"a table cannot be learnt with {recipe.wiring}: {problem}") from None
    training_config(chosen, 2, wiring=recipe.wiring, seed=0)


class _CellCallback(TrainCallback):
    """Keeps the metrics of each epoch, sends heartbeats, and stops the fit when requested.

    Args:
        heartbeat: receives the step and the loss after each epoch
        stop_flag: set by Ctrl-C or SIGTERM
        pause_step: step after which to stop; None to train to the end
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
    """Fit one cell and score it; None if it was asked to stop, or paused."""
    clock = time.monotonic()
    recipe.save(job.folder / CONFIG)
    table = TableSplits.read(Path(recipe.data), job.score)
    scaling = recipe.params.get("target_scaling", "auto")
    target, rows = table.build_target(scaling), len(table.parts[TRAIN])
    batches = math.ceil(rows / table.batch)
    epochs = math.ceil(recipe.steps / batches)
    chosen = build_estimator(recipe, table.kind, epochs=epochs, batch=table.batch)
    columns, ones = read_unweighted(table.inputs(TRAIN), table.types or chosen.column_types)
    encoder = TableEncoder.from_columns(columns, ones)
    device = pick_device(chosen.device)
    train, valid = (
        WeightedBatch(
            encoder.encode(table.inputs(part)),
            target.encode(table.target_values(part)),
            torch.ones(len(table.parts[part])),
        )
        for part in (TRAIN, VALID)
    )

    with (
        graceful_shutdown() as stop_flag,
        torch_context(threads=None, seed=derive_seed(recipe.seed, "fit")),
    ):
        config = model_config(chosen, encoder, target.outputs)
        model = build_model(config, train, target=target, seed=recipe.seed, device=device)
        callback = _CellCallback(heartbeat, stop_flag, job.pause_step, batches=batches, rows=rows)
        curve = callback.history
        with _write_rows_on_exit(job, curve, batches) as ended:
            fit_model(
                model,
                train.to(device),
                valid.to(device),
                target=target,
                config=training_config(chosen, rows, wiring=recipe.wiring, seed=recipe.seed),
                reference=train.cells.select_rows(slice(0, 64)).to(device),
                callback=callback,
            )
    if ended.stopped and (stop_flag.requested or len(curve) < epochs):
        return None
    losses = [row["valid"] for row in curve if math.isfinite(row["valid"])]
    done = len(curve) == epochs and bool(losses)
    reference = train.cells.select_rows(slice(0, 64)).to(device)
    speaks = done and job.score is not None
    return CellResult(
        "done" if done else "diverged",
        "" if done else f"a loss was not finite in pass {len(curve) + 1} over the rows",
        step=len(curve) * batches,
        loss=min(losses) if done else math.nan,
        lowest=min(losses, default=math.nan),
        scores=_compute_scores(model, encoder, table, recipe, reference) if speaks else {},
        samples=_format_samples(model, encoder, table, target, reference) if speaks else (),
        tokens=len(curve) * rows,
        seconds=time.monotonic() - clock,
        rate=heartbeat.rate,
        parameters=sum(weight.numel() for weight in model.parameters()),
    )


@dataclass
class _FitStatus:
    stopped: bool = False


@contextmanager
def _write_rows_on_exit(
    job: Job, curve: list[dict[str, float]], batches: int
) -> Iterator[_FitStatus]:
    """The rows of what was measured are written, however it ends."""
    ended = _FitStatus()
    try:
        yield ended
    except TrainingStopped:
        ended.stopped = True
    except UserError:
        if curve:  # in the first pass the loss was not finite: that is how this cell ended
            raise
    finally:
        write_rows(job.folder / ROWS, _loss_rows(curve, batches))


def _loss_rows(curve: list[dict[str, float]], batches: int) -> list[Row]:
    return [
        {"step": int(row["epoch"]) * batches, "name": "loss", "value": row[part], "split": part}
        for row in curve
        for part in (TRAIN, VALID)
    ]


def _compute_scores(
    model: TableModel,
    encoder: TableEncoder,
    table: TableSplits,
    recipe: TableRecipe,
    reference: TableBatch,
) -> dict[str, float]:
    """On whole rows, and on rows some of whose cells are taken away or those of other rows."""
    cells, wanted = encoder.encode(table.inputs(TEST)), table.target_values(TEST)
    found = {"": cells}
    for what in ("missing", "noise"):
        for share in getattr(recipe, what):
            chance = torch.Generator().manual_seed(derive_seed(recipe.seed, what, str(share)))
            size = (cells.num_rows, model.config.features)
            where = torch.rand(size, generator=chance) < share
            others = cells.select_rows(torch.randperm(cells.num_rows, generator=chance))
            spoilt = (
                cells.masked(where) if what == "missing" else cells.replace_cells(others, where)
            )
            found[f", {what} {share:g}"] = spoilt
    name, score = ("accuracy", _accuracy) if table.classes else ("r2", _r2)
    target = table.build_target(recipe.params.get("target_scaling", "auto"))
    return {
        f"{name}{more}": score(_predict(model, part, reference), wanted, target)
        for more, part in found.items()
    }


def _predict(model: TableModel, cells: TableBatch, reference: TableBatch) -> np.ndarray:
    said: np.ndarray = predict(model, cells, reference).double().cpu().numpy()
    return said


def _accuracy(predictions: np.ndarray, expected: np.ndarray, _target: Target) -> float:
    return float((predictions.argmax(1) == expected).mean())


def _r2(predictions: np.ndarray, expected: np.ndarray, target: Target) -> float:
    assert isinstance(target, NumberTarget)
    spread = float(((expected - expected.mean()) ** 2).sum())
    return 1 - float(((target.decode(predictions[:, 0]) - expected) ** 2).sum()) / max(
        spread, 1e-12
    )


def _format_samples(
    model: TableModel,
    encoder: TableEncoder,
    table: TableSplits,
    target: Target,
    reference: TableBatch,
) -> tuple[str, ...]:
    """Answers to the first rows: labels with their probability, or numbers."""
    said = _predict(model, encoder.encode(table.inputs(TEST).iloc[:NUM_SAMPLES]), reference)
    if isinstance(target, NumberTarget):
        return tuple(f"{value:.4g}" for value in target.decode(said[:, 0]))
    shares = softmax(said, axis=1)
    return tuple(f"{table.classes[row.argmax()]} ({row.max():.0%})" for row in shares)


__all__ = ["AXES", "PARAMETERS", "TableSplits", "fit_cell", "read_examples", "try_model"]
