"""What the function of a task of one's own receives: the settings of a cell, and a log."""

import operator
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from addnorm.comparison.cell_job import Heartbeat
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag
from addnorm.core.rows import Row, read_rows, write_rows

LOSS_SPLITS = {"loss": "train", "train_loss": "train", "valid_loss": "valid"}
"""Names of `Cell.log` that are losses, with their split."""


class CellInterrupted(BaseException):
    """Raised by `Cell.log` after Ctrl-C or SIGTERM, and where halving pauses a cell.

    Not an `Exception`, so that a training loop that handles those does not continue.
    """


class Cell(Mapping[str, Any]):
    """One training run of a comparison, as the function of a task receives it.

    Every axis and every key of the comparison is an attribute and an item: `cell.optimizer`,
    `cell["optimizer"]`, `cell.get("dropout", 0.1)`, `dict(cell)`.

    Args:
        values: settings of the cell by name
        folder: folder for files of the function, such as checkpoints; it outlives an interruption
        rows_file: file of the measured rows
        heartbeat: receives the steps
        stop_flag: set by Ctrl-C or SIGTERM
        pause_step: step at which to pause; None trains to the end
    """

    wiring: str
    """Value of the axis `wiring`; `default` if the comparison does not have it."""
    norm: str
    """Value of the axis `norm`; `default` if the comparison does not have it."""
    depth: int
    lr: float
    warmup: int
    """Steps over which the learning rate should rise to `lr`; 0 without warm-up."""
    schedule: str
    """Learning-rate schedule of all cells, as a call string without warm-up."""
    seed: int
    steps: int
    """Number of optimizer steps."""
    name: str
    """Name of the cell, for logs and trackers."""
    data: str
    """Path of `data=...`; `demo` if the comparison does not have it."""
    folder: Path
    """Folder for files of the function, such as checkpoints."""

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        folder: Path,
        rows_file: Path,
        heartbeat: Heartbeat,
        stop_flag: StopFlag,
        pause_step: int | None = None,
    ) -> None:
        self._values, self.folder = dict(values), folder
        self._rows_file, self._heartbeat = rows_file, heartbeat
        self._stop_flag, self._pause_step = stop_flag, pause_step
        self._has_written, self._train_step = False, -1

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        known = ", ".join(values)
        raise AttributeError(
            f"the cell has no {name!r}; add --axis {name}=... or {name}=VALUE to the comparison. "
            f"Known: {known}"
        )

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Cell({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def log(
        self,
        step: int,
        *,
        train_loss: float | None = None,
        valid_loss: float | None = None,
        **metrics: float,
    ) -> None:
        """Record the losses and other metrics of a step.

        Call it often: it shows that the cell is alive, and stops it after Ctrl-C or SIGTERM.

        Args:
            step: optimizer steps done
            train_loss: training loss of the step
            valid_loss: loss on held-out data
            metrics: other numbers by name

        Raises:
            CellInterrupted: the comparison was interrupted; the function is called again when it
                is resumed
        """
        step = _to_step(step)
        losses = {"train_loss": train_loss, "valid_loss": valid_loss}
        numbers = {name: value for name, value in losses.items() if value is not None} | metrics
        rows = [_make_row(step, name, to_number(name, value)) for name, value in numbers.items()]
        self._append(rows, step)
        train = [row["value"] for row in rows if row.get("split") == "train"]
        loss = train[0] if train else self._heartbeat.loss
        self._heartbeat.update(step, step, loss)
        if self._stop_flag.requested or (self._pause_step is not None and step >= self._pause_step):
            raise CellInterrupted

    def write_rows(self, rows: Iterable[Row]) -> None:
        """Record measured rows: mappings with `step`, `name` and `value`.

        For a monitor: `addnorm.Monitor(model, optimizer, sinks=[cell.write_rows])`. Rows with a
        `site` appear in the site charts of the page; a `loss` without one is a training loss.
        """
        rows = [
            {"split": "train"} | dict(row)
            if row.get("name") == "loss" and row.get("site") is None
            else row
            for row in rows
        ]
        for row in rows:
            if not {"step", "name", "value"} <= row.keys():
                raise UserError(f"rows: expected step, name and value, got {dict(row)}")
        if rows:
            self._append(rows, min(row["step"] for row in rows))
            self._heartbeat.tick(0, 0)

    def _append(self, rows: list[Row], first_step: int) -> None:
        """Write rows; the first call replaces those of an interrupted attempt from its step on."""
        if not self._has_written and self._rows_file.exists():
            kept = [row for row in read_rows(self._rows_file) if row["step"] < first_step]
            write_rows(self._rows_file, kept)
        self._has_written = True
        # A monitor and `log` may both record the training loss of a step.
        new = [row for row in rows if not self._is_logged(row)]
        self._train_step = max([self._train_step, *(r["step"] for r in new if _is_train_loss(r))])
        write_rows(self._rows_file, new, append=True)

    def _is_logged(self, row: Row) -> bool:
        return _is_train_loss(row) and row["step"] == self._train_step


def _is_train_loss(row: Row) -> bool:
    return row["name"] == "loss" and row.get("split") == "train" and row.get("site") is None


def to_number(name: str, value: Any) -> float:
    """Return a metric as a float; tensors and arrays with one element are accepted."""
    try:
        return float(_to_scalar(value))
    except (TypeError, ValueError, RuntimeError):
        kind = type(value).__name__
        raise UserError(f"{name}: expected a number, got {value!r} of type {kind}") from None


def _to_scalar(value: Any) -> Any:
    # `float` of a tensor with a gradient warns.
    return value.item() if isinstance(value, torch.Tensor | np.ndarray | np.generic) else value


def _to_step(step: Any) -> int:
    try:
        return operator.index(_to_scalar(step))
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"step: expected an integer, got {step!r}") from None


def _make_row(step: int, name: str, value: float) -> Row:
    if name in LOSS_SPLITS:
        return {"step": step, "name": "loss", "value": value, "split": LOSS_SPLITS[name]}
    return {"step": step, "name": name, "value": value}
