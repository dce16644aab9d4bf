"""Progress of `addnorm compare`: a live table on a terminal, log lines elsewhere.

Both count the cells of each arm at each depth and estimate the remaining time. The unit of work is
one step of one layer, because a cell of depth 12 takes about twice as long as one of depth 6.
"""

import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.callbacks import ComparisonCallback
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.engines.base import Event
from addnorm.comparison.grid import Cell
from addnorm.comparison.outcomes import TRAINED_PROGRESS, VALIDATION_LOSS, progress
from addnorm.report.format import plural
from addnorm.report.progress.base import LOG_INTERVAL_SECONDS, ProgressReporter, format_time_left

NUMERIC_COLUMNS_WIDTH = 32
"""Terminal columns taken by all columns of the table except the arm's name."""


@dataclass
class _Tally:
    """Counts of the cells of one arm at one depth."""

    total: int = 0
    done: int = 0
    failed: int = 0
    losses: list[float] = field(default_factory=list)
    """Final validation losses of the cells that trained."""


class ComparisonReporter(ProgressReporter, ComparisonCallback):
    """Counts finished cells and estimates the remaining time; the base of both displays."""

    def __init__(self) -> None:
        super().__init__()
        self.tallies: dict[tuple[str, int], _Tally] = {}
        self.cells: dict[str, Cell] = {}
        self.running: dict[str, tuple[int, float]] = {}
        """Step and training loss of each running cell."""
        self.waiting: dict[str, str] = {}
        """Why each cell in the queue of a cluster waits."""
        self.results: dict[str, CellResult] = {}
        self.started_at, self.work_done, self.steps = time.monotonic(), 0.0, 1
        self.baseline, self.objective = math.nan, VALIDATION_LOSS

    def on_comparison_start(self, study: Study, workers: int) -> None:
        spec = study.spec
        self.steps, self.started_at = spec.steps, time.monotonic()
        self.baseline = study.shared_data.baseline if study.shared_data else math.nan
        self.objective = study.task.objective
        for each in study.cells:
            self._add_cell(each.cell)
            if each.end is not None and each.state != "crashed":
                self._add_result(each.cell, each.end)
        done = len(self.results)
        workers = min(workers, len(study.cells))
        self.on_message(
            f"{plural(len(study.cells), 'cell')} of {plural(spec.steps, 'step')}, "
            f"{workers} at a time; "
            f"study {spec.digest} in {study.folder}"
        )
        if done:
            self.on_message(f"resuming: {done} of {len(study.cells)} cells are already done")

    def on_cell_event(self, event: Event) -> None:
        name = event.job.name
        if event.kind == "waiting":
            self.waiting[name] = event.reason
        else:
            self.waiting.pop(name, None)
        if event.kind == "began":
            self.running[name] = (0, math.nan)
        elif event.kind == "stepped":
            previous_step, _ = self.running.get(name, (0, math.nan))
            # The first report is not counted: a resumed cell starts at the step of its checkpoint.
            if event.step > previous_step > 0:
                self.work_done += (event.step - previous_step) * self.cells[name].depth
            self.running[name] = (event.step, event.loss)
        else:
            running = self.running.pop(name, None)
            if event.kind == "ended" and running:  # a short cell ends before its second report
                self.work_done += max(0, event.step - running[0]) * self.cells[name].depth
        if event.kind == "ended" and event.end is not None:
            self._add_result(self.cells[name], event.end)

    def describe_waiting(self) -> str:
        """Return how many cells wait in the queue of a cluster, by reason; empty if none does."""
        reasons = Counter(self.waiting.values())
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        return f"in the queue: {counts}" if counts else ""

    def on_extension(self, study: Study, message: str) -> None:
        for each in study.cells:
            if each.cell.name not in self.cells:
                self._add_cell(each.cell)
        self.on_message(message)

    def on_comparison_end(self, study: Study) -> None:
        if study.interrupted:
            self.on_message("interrupted; rerun the same command to resume")

    def remaining_seconds(self) -> float:
        """Estimate the time until all cells have ended; NaN before the first steps."""
        remaining_work = 0.0
        for name, cell in self.cells.items():
            if name not in self.results:
                step, _ = self.running.get(name, (0, 0.0))
                remaining_work += (self.steps - step) * cell.depth
        elapsed = time.monotonic() - self.started_at
        return remaining_work * elapsed / self.work_done if self.work_done else math.nan

    def has_failed(self, result: CellResult) -> bool:
        """Return whether a cell has not trained, judged by the best loss known so far."""
        if result.ending != "done":
            return result.ending != "cut"
        if math.isnan(self.baseline):  # estimated when the cells have ended
            return False
        losses = (each.loss for each in self.results.values() if math.isfinite(each.loss))
        best = min(losses, default=math.inf)
        return not progress(result.loss, baseline=self.baseline, best=best) >= TRAINED_PROGRESS

    def _add_cell(self, cell: Cell) -> None:
        self.cells[cell.name] = cell
        self.tallies.setdefault(_tally_key(cell), _Tally()).total += 1

    def _add_result(self, cell: Cell, result: CellResult) -> None:
        self.results[cell.name] = result
        # Count again from the start: a new best loss can turn earlier cells into failed ones.
        for tally in self.tallies.values():
            tally.done, tally.failed, tally.losses = 0, 0, []
        for name, each in self.results.items():
            tally = self.tallies[_tally_key(self.cells[name])]
            tally.done += 1
            if self.has_failed(each):
                tally.failed += 1
            elif math.isfinite(each.loss):
                tally.losses.append(each.loss)


class LiveTable(ComparisonReporter):
    """A table with one row per arm and depth, redrawn twice a second."""

    def __init__(self) -> None:
        super().__init__()
        self.live = Live(
            get_renderable=self._render_table,
            console=self.console,
            refresh_per_second=2,
            transient=True,
        )

    def on_comparison_start(self, study: Study, workers: int) -> None:
        super().on_comparison_start(study, workers)
        self.live.start()

    def on_comparison_end(self, study: Study) -> None:
        self.live.stop()
        super().on_comparison_end(study)

    def close(self) -> None:
        self.live.stop()  # otherwise the cursor stays hidden after an exception

    def _render_table(self) -> Group:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
        name_width = max(8, self.console.width - NUMERIC_COLUMNS_WIDTH)
        table.add_column(
            "arm", style="bold", no_wrap=True, max_width=name_width, overflow="ellipsis"
        )
        for name in ("depth", "done", "failed", "best"):
            table.add_column(name, justify="right", no_wrap=True)
        rows = list(self.tallies.items())
        max_rows = max(3, self.console.height - 6)
        if len(rows) > max_rows:  # unfinished rows only
            visible = [row for row in rows if row[1].done < row[1].total][:max_rows]
        else:
            visible = rows
        for (arm, depth), tally in visible:
            best = f"{self.objective.to_loss(min(tally.losses)):.3f}" if tally.losses else ""
            failed = Text(str(tally.failed or ""), style="red")
            table.add_row(arm, str(depth), f"{tally.done}/{tally.total}", failed, best)
        num_hidden = len(rows) - len(visible)
        more = [Text(f"and {num_hidden} more rows", style="dim")] if num_hidden else []
        return Group(table, *more, Text(self._footer_text(), style="dim"))

    def _footer_text(self) -> str:
        done, total = len(self.results), len(self.cells)
        steps = ", ".join(f"{step}" for step, _ in self.running.values())
        position = f"; at step {steps} of {self.steps}" if steps else ""
        waiting = f"; {text}" if (text := self.describe_waiting()) else ""
        time_left = format_time_left(self.remaining_seconds())
        return f"{done} of {total} cells, {time_left}{position}{waiting}"


class LogLines(ComparisonReporter):
    """One line for each cell that ends, and one every few seconds in between."""

    last_printed_at = 0.0

    def on_cell_event(self, event: Event) -> None:
        super().on_cell_event(event)
        result = event.end
        if event.kind == "ended" and result is not None:
            outcome = self._describe_loss(result) if result.ending == "done" else result.ending
            reason = f" ({result.why})" if result.why else ""
            self._print_line(f"{event.job.name}: {outcome}{reason}")
        elif time.monotonic() - self.last_printed_at > LOG_INTERVAL_SECONDS:
            cells = [f"{name} at {step}" for name, (step, _) in self.running.items()]
            if waiting := self.describe_waiting():
                cells.append(waiting)
            if cells:
                self._print_line(", ".join(cells))

    def _describe_loss(self, result: CellResult) -> str:
        return f"{self.objective.column} {self.objective.to_loss(result.loss):.4f}"

    def _print_line(self, text: str) -> None:
        self.last_printed_at = time.monotonic()
        count = f"{len(self.results)}/{len(self.cells)}"
        self.console.print(f"{count} | {text} | {format_time_left(self.remaining_seconds())}")


def make_comparison_reporter() -> ComparisonReporter:
    """Return a live table if standard error is a terminal, log lines otherwise."""
    return LiveTable() if sys.stderr.isatty() else LogLines()


def _tally_key(cell: Cell) -> tuple[str, int]:
    return cell.arm.name, cell.depth
