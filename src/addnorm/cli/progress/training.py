"""A training to look at: a bar on a terminal, lines elsewhere; both on standard error."""

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

from addnorm.core.rows import Row
from addnorm.train.recipe import Recipe
from addnorm.train.run_folder import REPORT
from addnorm.train.train_state import Outcome, TrainCallback
from addnorm.train.train_state import TrainState as State

LOG_INTERVAL_SECONDS = 10.0
"""Between two lines, where there is no terminal."""
MIN_BAR_WIDTH = 8
"""Columns below which a bar says nothing."""


class TrainingReporter(TrainCallback):
    """What both have in common: words, the rows of TensorBoard, the last table, the report."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.loss, self.valid_loss = math.nan, math.nan
        self.tensorboard: Any = None
        self.writer = _load_summary_writer() if recipe.tensorboard else None

    def on_train_start(self, progress: State, facts: dict[str, Any]) -> None:
        """Say what is trained, and from where it goes on."""
        if self.writer is not None:
            self.tensorboard = self.writer(str(self.folder / "tensorboard"))
        model = self.recipe.model
        self.on_message(
            f"{self.recipe.task}: {model['wiring']} with norm {model['norm']}, "
            f"{facts['parameters']:,} parameters, {facts['device']}; "
            f"schedule {self.recipe.schedule}{facts['recommended']}"
        )
        if progress.step:
            self.on_message(f"going on from step {progress.step}")

    def on_message(self, text: str) -> None:
        """On a line of its own."""
        self.console.print(f"addnorm: {text}")

    def on_rows(self, rows: list[Row]) -> None:
        """Validations are told."""
        for row in rows:
            if row.get("split") == "valid":
                if row["name"] == "loss":
                    self.valid_loss = float(row["value"])
                else:
                    self.on_message(
                        f"step {row['step']}: validation loss {self.valid_loss:.4f}, "
                        f"{row['name']} {float(row['value']):.4g}"
                    )
            if self.tensorboard is not None:
                place = "/".join(str(row[key]) for key in ("stack", "site", "split") if key in row)
                name = f"{row['name']}/{place}" if place else str(row["name"])
                self.tensorboard.add_scalar(name, row["value"], row["step"])

    def close(self) -> None:
        """Leave the terminal and the files as they should be, however it ended."""
        if self.tensorboard is not None:
            self.tensorboard.close()

    def on_train_end(self, outcome: Outcome) -> None:
        """The last table, and the page with the curves."""
        from addnorm.report.run_page import write_training_report

        self.on_message(f"writing {self.folder / REPORT}")
        page = write_training_report(self.folder)
        self.console.print(_table(outcome, self.loss, page))
        if outcome.ending == "interrupted":
            self.on_message(f"interrupted {outcome.reason}; the same command goes on from there")
        elif outcome.ending != "done":
            self.on_message(f"{outcome.ending}: {outcome.reason}")


class ProgressBarReporter(TrainingReporter):
    """One line that moves: steps, loss, tokens a second, time left."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        super().__init__(recipe, folder)
        steps, left = MofNCompleteColumn(), TimeRemainingColumn()
        loss = TextColumn("loss {task.fields[loss]:.3f}")
        rate = TextColumn("{task.fields[rate]:,.0f} tok/s")
        bar, spent = BarColumn(), TimeElapsedColumn()
        self.bar = FittingProgress(
            *(bar, steps, loss, rate, spent, left),
            by_priority=(steps, loss, left, rate, bar, spent),
            console=self.console,
        )

    def on_train_start(self, progress: State, facts: dict[str, Any]) -> None:
        """Show the bar."""
        super().on_train_start(progress, facts)
        self.task_id = self.bar.add_task(
            "", total=self.recipe.steps, completed=progress.step, loss=math.nan, rate=0.0
        )
        self.start_mark = (time.monotonic(), progress.tokens)
        self.bar.start()

    def on_step_end(self, progress: State, loss: float) -> None:
        """Move it."""
        self.loss = loss if math.isnan(self.loss) else 0.95 * self.loss + 0.05 * loss
        since, tokens = self.start_mark
        rate = (progress.tokens - tokens) / max(time.monotonic() - since, 1e-9)
        self.bar.update(self.task_id, completed=progress.step, loss=self.loss, rate=rate)

    def on_train_end(self, outcome: Outcome) -> None:
        """Take it away."""
        self.bar.stop()
        super().on_train_end(outcome)

    def close(self) -> None:
        """Also if it did not end well: the cursor must come back."""
        self.bar.stop()
        super().close()


class FittingProgress(Progress):
    """Columns of progress as far as the terminal has room for them; none is cut.

    first: the columns by their importance; what does not fit is left out, what comes after it may
        still be there
    """

    def __init__(
        self, *columns: ProgressColumn, by_priority: tuple[ProgressColumn, ...], console: Console
    ) -> None:
        self.all_columns, self.by_priority, self.screen = columns, by_priority, console
        super().__init__(*columns, console=console)

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        """The table of what fits now: numbers grow, and windows change their size."""
        tasks = list(tasks)
        room, chosen = self.screen.width, set[ProgressColumn]()
        for column in self.by_priority:
            width = max((_width(column, task) for task in tasks), default=0) + bool(chosen)
            if width <= room:
                chosen.add(column)
                room -= width
        shown = tuple(column for column in self.all_columns if column in chosen)
        for column in shown:
            if isinstance(column, BarColumn):
                column.bar_width = (
                    MIN_BAR_WIDTH + room
                )  # told, since a table would rather cut the numbers
        self.columns = shown
        return super().make_tasks_table(tasks)


class LogLines(TrainingReporter):
    """A line every few seconds, for logs."""

    def on_train_start(self, progress: State, facts: dict[str, Any]) -> None:
        """From now on."""
        super().on_train_start(progress, facts)
        self.first_mark = self.last_mark = (time.monotonic(), progress.step, progress.tokens)

    def on_step_end(self, progress: State, loss: float) -> None:
        """Write one, if it is time."""
        self.loss = loss if math.isnan(self.loss) else 0.95 * self.loss + 0.05 * loss
        now = time.monotonic()
        since, _, tokens = self.last_mark
        if now - since < LOG_INTERVAL_SECONDS:
            return
        rate = (progress.tokens - tokens) / (now - since)
        pace = (now - self.first_mark[0]) / max(progress.step - self.first_mark[1], 1)
        left = pace * (self.recipe.steps - progress.step)
        print(
            f"step {progress.step}/{self.recipe.steps} | loss {self.loss:.3f} | {rate:,.0f} tok/s |"
            f" {_format_duration(left)} left",
            file=sys.stderr,
            flush=True,
        )
        self.last_mark = (now, progress.step, progress.tokens)


def _width(column: ProgressColumn, task: Task) -> int:
    """Columns of the terminal that a column of progress wants, the blank before it not counted."""
    shown = column(task)
    return shown.cell_len if isinstance(shown, Text) else MIN_BAR_WIDTH


def _table(outcome: Outcome, loss: float, page: Path) -> Table:
    progress = outcome.progress
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_row("ended", outcome.ending)
    table.add_row("steps", f"{progress.step:,}")
    table.add_row("training loss", f"{loss:.4f}")
    if progress.best_step:
        table.add_row("best validation loss", f"{progress.best:.4f} at step {progress.best_step}")
    table.add_row("tokens", f"{progress.tokens:,}")
    rate = progress.tokens / max(progress.seconds, 1e-9)
    table.add_row("time", f"{_format_duration(progress.seconds)}, {rate:,.0f} tokens a second")
    table.add_row("report", str(page))
    return table


def _format_duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _load_summary_writer() -> Any:
    from addnorm.core.errors import UserError

    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "tensorboard=true needs the package tensorboard; install it, or leave the key out"
        ) from None
    return SummaryWriter
