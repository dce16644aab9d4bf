"""The fit of one cell to a table; all that the task of tables needs scikit-learn for."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import softmax

from addnorm.comparison.cell_result import Finished
from addnorm.comparison.job import Job, Pulse
from addnorm.comparison.tasks.base import SAMPLES
from addnorm.comparison.tasks.table import TableRecipe
from addnorm.comparison.tasks.table_data import TEST, TRAIN, VALID, Parted, questions, read
from addnorm.core.errors import UserError
from addnorm.core.rows import Row, write_rows
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import MODELS, Cells, TableModel, build_table_model
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.params import config_of, training_of
from addnorm.tabular.training.loop import Sample, answers, begun, fit_model, settled
from addnorm.tabular.training.targets import NumberTarget, Target
from addnorm.train.device import pick_device
from addnorm.train.run_folder import CONFIG, ROWS
from addnorm.train.throughput import stoppable

KINDS = {"classify": TabularTransformerClassifier, "regress": TabularTransformerRegressor}
AXES = ("wiring", "norm", "depth", "lr", "schedule")
"""Parameters of the estimator that a comparison varies."""
PARAMETERS = (
    *("model", "numeric", "dim", "heads", "ffn_dim", "activation", "dropout"),
    *("attention_dropout", "activation_dropout", "optimizer", "weight_decay", "average"),
    *("batch_size", "column_types", "target_scaling", "precision", "device"),
)
"""Those that are the same for all cells; what else an estimator has would not be fair, or is of no
use here."""


class Stopped(Exception):
    """Somebody wants an end, or a look before it goes on."""


def estimator(recipe: TableRecipe, kind: str, *, epochs: int, batch: int) -> Any:
    """The estimator whose parameters a cell has; all get the same number of passes.

    Parameters are those of all arms: what means nothing to the model of one is left out there.
    """
    made = KINDS[kind](random_state=recipe.seed)
    model = MODELS.get(recipe.params.get("model", made.model))
    known = set(made.get_params()) - set(() if model is None else model.unused)
    params = {name: value for name, value in recipe.params.items() if name in known}
    axes = {name: getattr(recipe, name) for name in AXES}
    params |= {"max_epochs": epochs, "patience": epochs, "batch_size": batch}
    return made.set_params(**params | axes)


def try_model(recipe: TableRecipe) -> None:
    """Build the model of a recipe for a table of two numbers and a category."""
    few = pd.DataFrame({"a": [0.5, 1.5], "b": [2.5, 1.0], "c": ["x", "y"]})
    encoder = TableEncoder.of(*read(few, None))
    chosen = estimator(recipe, "classify", epochs=1, batch=1)
    try:
        build_table_model(config_of(chosen, encoder, 2))
    except UserError as problem:
        raise UserError(f"a table cannot be learnt with {recipe.wiring}: {problem}") from None
    training_of(chosen, 2, wiring=recipe.wiring, seed=0)


def fit_cell(job: Job, recipe: TableRecipe, pulse: Pulse) -> Finished | None:
    """Fit one cell and score it; None if it was asked to stop, or paused."""
    clock = time.monotonic()
    recipe.save(job.folder / CONFIG)
    table = Parted.read(Path(recipe.data), job.score)
    scaling = recipe.params.get("target_scaling", "auto")
    target, rows = table.learnt(scaling), len(table.parts[TRAIN])
    batches = math.ceil(rows / table.batch)
    epochs = math.ceil(recipe.steps / batches)
    chosen = estimator(recipe, table.kind, epochs=epochs, batch=table.batch)
    columns, ones = read(table.inputs(TRAIN), table.types or chosen.column_types)
    encoder = TableEncoder.of(columns, ones)
    device = pick_device(chosen.device)
    train, valid = (
        Sample(
            encoder.encode(table.inputs(part)),
            target.asked(table.wanted(part)),
            torch.ones(len(table.parts[part])),
        )
        for part in (TRAIN, VALID)
    )
    curve: list[dict[str, float]] = []

    def watch(epoch: int, _total: int, row: dict[str, float]) -> None:
        curve.append(row)
        pulse.came(epoch * batches, epoch * rows, row["train"])
        if bell.rung or (job.until is not None and epoch * batches >= job.until):
            raise Stopped

    with stoppable() as bell, settled(threads=None, seed=derive_seed(recipe.seed, "fit")):
        config = config_of(chosen, encoder, target.outputs)
        model = begun(config, train, target=target, seed=recipe.seed, device=device)
        with _kept(job, curve, batches) as ended:
            fit_model(
                model,
                train.to(device),
                valid.to(device),
                target=target,
                how=training_of(chosen, rows, wiring=recipe.wiring, seed=recipe.seed),
                reference=train.cells.rows(slice(0, 64)).to(device),
                watch=watch,
            )
    if ended.stopped and (bell.rung or len(curve) < epochs):
        return None
    losses = [row["valid"] for row in curve if math.isfinite(row["valid"])]
    done = len(curve) == epochs and bool(losses)
    reference = train.cells.rows(slice(0, 64)).to(device)
    speaks = done and job.score is not None
    return Finished(
        "done" if done else "diverged",
        "" if done else f"a loss was not finite in pass {len(curve) + 1} over the rows",
        step=len(curve) * batches,
        loss=min(losses) if done else math.nan,
        lowest=min(losses, default=math.nan),
        scores=_scores(model, encoder, table, recipe, reference) if speaks else {},
        samples=_samples(model, encoder, table, target, reference) if speaks else (),
        tokens=len(curve) * rows,
        seconds=time.monotonic() - clock,
        rate=pulse.rate,
        parameters=sum(weight.numel() for weight in model.parameters()),
    )


@dataclass
class _Ended:
    stopped: bool = False


@contextmanager
def _kept(job: Job, curve: list[dict[str, float]], batches: int) -> Iterator[_Ended]:
    """The rows of what was measured are written, however it ends."""
    ended = _Ended()
    try:
        yield ended
    except Stopped:
        ended.stopped = True
    except UserError:
        if curve:  # in the first pass the loss was not finite: that is how this cell ended
            raise
    finally:
        write_rows(job.folder / ROWS, _rows(curve, batches))


def _rows(curve: list[dict[str, float]], batches: int) -> list[Row]:
    return [
        {"step": int(row["epoch"]) * batches, "name": "loss", "value": row[part], "split": part}
        for row in curve
        for part in (TRAIN, VALID)
    ]


def _scores(
    model: TableModel,
    encoder: TableEncoder,
    table: Parted,
    recipe: TableRecipe,
    reference: Cells,
) -> dict[str, float]:
    """On whole rows, and on rows some of whose cells are taken away or those of other rows."""
    cells, wanted = encoder.encode(table.inputs(TEST)), table.wanted(TEST)
    found = {"": cells}
    for what in ("missing", "noise"):
        for share in getattr(recipe, what):
            chance = torch.Generator().manual_seed(derive_seed(recipe.seed, what, str(share)))
            size = (cells.height, model.config.features)
            where = torch.rand(size, generator=chance) < share
            others = cells.rows(torch.randperm(cells.height, generator=chance))
            spoilt = cells.hidden(where) if what == "missing" else cells.replaced(others, where)
            found[f", {what} {share:g}"] = spoilt
    name, score = ("accuracy", _accuracy) if table.classes else ("r2", _r2)
    target = table.learnt(recipe.params.get("target_scaling", "auto"))
    return {
        f"{name}{more}": score(_said(model, part, reference), wanted, target)
        for more, part in found.items()
    }


def _said(model: TableModel, cells: Cells, reference: Cells) -> np.ndarray:
    said: np.ndarray = answers(model, cells, reference).double().cpu().numpy()
    return said


def _accuracy(said: np.ndarray, wanted: np.ndarray, _target: Target) -> float:
    return float((said.argmax(1) == wanted).mean())


def _r2(said: np.ndarray, wanted: np.ndarray, target: Target) -> float:
    assert isinstance(target, NumberTarget)
    spread = float(((wanted - wanted.mean()) ** 2).sum())
    return 1 - float(((target.answered(said[:, 0]) - wanted) ** 2).sum()) / max(spread, 1e-12)


def _samples(
    model: TableModel, encoder: TableEncoder, table: Parted, target: Target, reference: Cells
) -> tuple[str, ...]:
    """Answers to the first rows: labels with their probability, or numbers."""
    said = _said(model, encoder.encode(table.inputs(TEST).iloc[:SAMPLES]), reference)
    if isinstance(target, NumberTarget):
        return tuple(f"{value:.4g}" for value in target.answered(said[:, 0]))
    shares = softmax(said, axis=1)
    return tuple(f"{table.classes[row.argmax()]} ({row.max():.0%})" for row in shares)


__all__ = ["AXES", "PARAMETERS", "Parted", "fit_cell", "questions", "try_model"]
