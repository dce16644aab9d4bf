"""Progress of `addnorm train`: a progress bar on a terminal, log lines elsewhere."""

import itertools
import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from addnorm.core.errors import UserError
from addnorm.core.rows import Row
from addnorm.report.progress.base import (
    LOG_INTERVAL_SECONDS,
    ProgressReporter,
    format_duration,
    format_time_left,
)
from addnorm.train.callbacks import TrainCallback
from addnorm.train.recipe import Recipe
from addnorm.train.run_folder import REPORT
from addnorm.train.train_state import Outcome, TrainState

MIN_BAR_WIDTH = 8
"""Narrowest useful progress bar, in terminal columns."""
LOSS_SMOOTHING = 0.95
"""Decay of the exponential moving average of the displayed loss."""


class TrainingReporter(ProgressReporter, TrainCallback):
    """Prints validations and the final table, writes TensorBoard scalars and the HTML report."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        super().__init__()
        self.recipe, self.folder = recipe, folder
        self.loss = math.nan
        self.tensorboard: Any = None
        # Imported before training starts, so that a missing package is reported at once.
        self.writer = _load_summary_writer() if recipe.tensorboard else None

    def on_train_start(self, state: TrainState, summary: dict[str, Any]) -> None:
        if self.writer is not None:
            self.tensorboard = self.writer(str(self.folder / "tensorboard"))
        model = self.recipe.model
        self.on_message(
            f"{self.recipe.task}: {model['wiring']} with norm {model['norm']}, "
            f"{summary['parameters']:,} parameters, {summary['device']}; "
            f"schedule {self.recipe.schedule}{summary['recommended']}"
        )
        if state.step:
            self.on_message(f"resuming from step {state.step}")

    def on_step_end(self, state: TrainState, loss: float) -> None:
        previous = loss if math.isnan(self.loss) else self.loss
        self.loss = LOSS_SMOOTHING * previous + (1 - LOSS_SMOOTHING) * loss

    def on_rows(self, rows: list[Row]) -> None:
        self._report_validations([row for row in rows if row.get("split") == "valid"])
        for row in rows:
            if self.tensorboard is not None:
                fields = [str(row[key]) for key in ("stack", "site", "split") if key in row]
                tag = "/".join([str(row["name"]), *fields])
                self.tensorboard.add_scalar(tag, row["value"], row["step"])

    def on_train_end(self, outcome: Outcome) -> None:
        from addnorm.report.run_page import write_training_report

        self.on_message(f"writing {self.folder / REPORT}")
        page = write_training_report(self.folder)
        self.console.print(_outcome_table(outcome, self.loss, page))
        if outcome.ending == "interrupted":
            self.on_message(f"interrupted {outcome.reason}; rerun the same command to resume")
        elif outcome.ending != "done":
            self.on_message(f"{outcome.ending}: {outcome.reason}")

    def close(self) -> None:
        if self.tensorboard is not None:
            self.tensorboard.close()

    def _report_validations(self, rows: list[Row]) -> None:
        """Print one line per validation: its loss and the metrics of the task."""
        for step, group in itertools.groupby(rows, key=lambda row: row["step"]):
            loss, *metrics = group
            values = "".join(f", {row['name']} {float(row['value']):.4g}" for row in metrics)
            self.on_message(f"step {step}: validation loss {float(loss['value']):.4f}{values}")


class ProgressBarReporter(TrainingReporter):
    """A progress bar with step, loss, tokens per second and remaining time."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        super().__init__(recipe, folder)
        steps, remaining = MofNCompleteColumn(), TimeRemainingColumn()
        loss = TextColumn("loss {task.fields[loss]:.3f}")
        rate = TextColumn("{task.fields[rate]:,.0f} tok/s")
        bar, elapsed = BarColumn(), TimeElapsedColumn()
        self.bar = FittingProgress(
            *(bar, steps, loss, rate, elapsed, remaining),
            by_priority=(steps, loss, remaining, rate, bar, elapsed),
            console=self.console,
        )

    def on_train_start(self, state: TrainState, summary: dict[str, Any]) -> None:
        super().on_train_start(state, summary)
        self.task_id = self.bar.add_task(
            "", total=self.recipe.steps, completed=state.step, loss=math.nan, rate=0.0
        )
        self.start_mark = (time.monotonic(), state.tokens)
        self.bar.start()

    def on_step_end(self, state: TrainState, loss: float) -> None:
        super().on_step_end(state, loss)
        start_time, start_tokens = self.start_mark
        rate = (state.tokens - start_tokens) / max(time.monotonic() - start_time, 1e-9)
        self.bar.update(self.task_id, completed=state.step, loss=self.loss, rate=rate)

    def on_train_end(self, outcome: Outcome) -> None:
        self.bar.stop()
        super().on_train_end(outcome)

    def close(self) -> None:
        self.bar.stop()  # otherwise the cursor stays hidden after an exception
        super().close()


class FittingProgress(Progress):
    """Progress display that drops whole columns instead of truncating them.

    Args:
        columns: the columns from left to right
        by_priority: the same columns, most important first. A column that does not fit is dropped;
            a narrower one after it may still be shown.
        console: the console to draw on
    """

    def __init__(
        self, *columns: ProgressColumn, by_priority: tuple[ProgressColumn, ...], console: Console
    ) -> None:
        self.all_columns, self.by_priority, self.screen = columns, by_priority, console
        super().__init__(*columns, console=console)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """Return the table of the columns that fit.

        The columns are chosen at each redraw: numbers get longer, and terminals are resized.
        """
        tasks = list(tasks)
        free_width, chosen = self.screen.width, set[ProgressColumn]()
        for column in self.by_priority:
            width = max((_column_width(column, task) for task in tasks), default=0) + bool(chosen)
            if width <= free_width:
                chosen.add(column)
                free_width -= width
        visible = tuple(column for column in self.all_columns if column in chosen)
        for column in visible:
            if isinstance(column, BarColumn):
                # Set explicitly: rich would truncate the numbers before it narrows the bar.
                column.bar_width = MIN_BAR_WIDTH + free_width
        self.columns = visible
        return super().make_tasks_table(tasks)


class LogLines(TrainingReporter):
    """One line every few seconds."""

    def on_train_start(self, state: TrainState, summary: dict[str, Any]) -> None:
        super().on_train_start(state, summary)
        self.first_mark = self.last_mark = (time.monotonic(), state.step, state.tokens)

    def on_step_end(self, state: TrainState, loss: float) -> None:
        super().on_step_end(state, loss)
        now = time.monotonic()
        last_time, _, last_tokens = self.last_mark
        if now - last_time < LOG_INTERVAL_SECONDS:
            return
        rate = (state.tokens - last_tokens) / (now - last_time)
        first_time, first_step, _ = self.first_mark
        seconds_per_step = (now - first_time) / max(state.step - first_step, 1)
        remaining = seconds_per_step * (self.recipe.steps - state.step)
        print(
            f"step {state.step}/{self.recipe.steps} | loss {self.loss:.3f} | {rate:,.0f} tok/s |"
            f" {format_time_left(remaining)}",
            file=sys.stderr,
            flush=True,
        )
        self.last_mark = (now, state.step, state.tokens)


def make_training_reporter(recipe: Recipe, folder: Path) -> TrainingReporter:
    """Return a progress bar if standard error is a terminal, log lines otherwise."""
    return (ProgressBarReporter if sys.stderr.isatty() else LogLines)(recipe, folder)


def _column_width(column: ProgressColumn, task: Task) -> int:
    """Return the terminal columns that a progress column needs, without the space before it."""
    content = column(task)
    return content.cell_len if isinstance(content, Text) else MIN_BAR_WIDTH


def _outcome_table(outcome: Outcome, loss: float, page: Path) -> Table:
    state = outcome.state
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_row("ended", outcome.ending)
    table.add_row("steps", f"{state.step:,}")
    table.add_row("training loss", f"{loss:.4f}")
    if state.best_step:
        table.add_row("best validation loss", f"{state.best:.4f} at step {state.best_step}")
    table.add_row("tokens", f"{state.tokens:,}")
    rate = state.tokens / max(state.seconds, 1e-9)
    table.add_row("time", f"{format_duration(state.seconds)}, {rate:,.0f} tokens per second")
    table.add_row("report", str(page))
    return table


def _load_summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "tensorboard=true requires the package tensorboard; install it or remove the key"
        ) from None
    return SummaryWriter
