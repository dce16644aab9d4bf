"""A comparison to look at, on standard error: a live table on a terminal, lines elsewhere."""

import math
import time
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.engines.base import Event
from addnorm.comparison.grid import Cell
from addnorm.comparison.outcomes import TRAINED_PROGRESS, progress
from addnorm.comparison.run import ComparisonCallback

NUMERIC_COLUMNS_WIDTH = 32
"""Columns of the table that are not the arm's name."""
LOG_INTERVAL_SECONDS = 10.0
"""Between two lines, where there is no terminal."""


@dataclass
class _Tally:
    """How an arm at a depth is doing."""

    total: int = 0
    done: int = 0
    failed: int = 0
    losses: list[float] = field(default_factory=list)


class ComparisonReporter(ComparisonCallback):
    """What both have in common: counting, and the time that is left."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.interrupted = False
        self.tallies: dict[tuple[str, int], _Tally] = {}
        self.cells: dict[str, Cell] = {}
        self.running: dict[str, tuple[int, float]] = {}
        """Step and training loss of the cells at work."""
        self.started_at, self.work_done, self.steps, self.workers = time.monotonic(), 0.0, 1, 1
        self.results: dict[str, CellResult] = {}
        self.baseline = math.nan

    def on_comparison_start(self, study: Study, workers: int) -> None:
        """Say what is compared, and what is done already."""
        spec = study.spec
        self.steps, self.workers, self.started_at = spec.steps, workers, time.monotonic()
        self.baseline = study.shared_data.baseline if study.shared_data else math.nan
        for each in study.cells:
            self.cells[each.cell.name] = each.cell
            self.tallies.setdefault(_tally_key(each.cell), _Tally()).total += 1
            if each.end is not None and each.state != "crashed":
                self._add_result(each.cell, each.end)
        done = len(self.results)
        self.on_message(
            f"{len(study.cells)} cells of {spec.steps} steps, {workers} at a time; "
            f"study {spec.digest} in {study.folder}"
        )
        if done:
            self.on_message(f"going on: {done} of {len(study.cells)} are done already")

    def on_cell_event(self, event: Event) -> None:
        """Count."""
        name = event.job.name
        if event.kind == "began":
            self.running[name] = (0, math.nan)
        elif event.kind == "stepped":
            before = self.running.get(name, (0, math.nan))
            if event.step > before[0] > 0:
                self.work_done += (event.step - before[0]) * self.cells[name].depth
            self.running[name] = (event.step, event.loss)
        else:
            self.running.pop(name, None)
        if event.kind == "ended" and event.end is not None:
            self._add_result(self.cells[name], event.end)

    def on_comparison_end(self, study: Study, *, interrupted: bool) -> None:
        """Say where it stands."""
        self.interrupted = interrupted
        if interrupted:
            self.on_message("interrupted; the same command goes on from here")

    def on_message(self, text: str) -> None:
        """On a line of its own."""
        self.console.print(f"addnorm: {text}")

    def close(self) -> None:
        """Leave the terminal as it should be, however it ended."""

    def remaining_seconds(self) -> float:
        """Seconds until the end, by the work done so far; a layer's step is the unit."""
        ahead = 0.0
        for name, cell in self.cells.items():
            if name not in self.results:
                ahead += (self.steps - self.running.get(name, (0, 0.0))[0]) * cell.depth
        passed = time.monotonic() - self.started_at
        return ahead * passed / self.work_done if self.work_done else math.nan

    def has_failed(self, end: CellResult) -> bool:
        """Whether a cell did not train, as far as can be told before all have ended."""
        if end.ending != "done":
            return end.ending != "cut"
        losses = (each.loss for each in self.results.values() if math.isfinite(each.loss))
        best = min(losses, default=math.inf)
        return not progress(end.loss, baseline=self.baseline, best=best) >= TRAINED_PROGRESS

    def _add_result(self, cell: Cell, end: CellResult) -> None:
        self.results[cell.name] = end
        for tally in self.tallies.values():
            tally.done, tally.failed, tally.losses = 0, 0, []
        for name, each in self.results.items():  # a new best may show others to be stuck
            tally = self.tallies[_tally_key(self.cells[name])]
            tally.done += 1
            if self.has_failed(each):
                tally.failed += 1
            elif math.isfinite(each.loss):
                tally.losses.append(each.loss)


class LiveTable(ComparisonReporter):
    """One table that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.live = Live(
            get_renderable=self._render_table,
            console=self.console,
            refresh_per_second=2,
            transient=True,
        )

    def on_comparison_start(self, study: Study, workers: int) -> None:
        """Show the table."""
        super().on_comparison_start(study, workers)
        self.live.start()

    def on_comparison_end(self, study: Study, *, interrupted: bool) -> None:
        """Take it away."""
        self.live.stop()
        super().on_comparison_end(study, interrupted=interrupted)

    def close(self) -> None:
        """Also if it did not end well: the cursor must come back."""
        self.live.stop()

    def _render_table(self) -> Group:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
        most = max(8, self.console.width - NUMERIC_COLUMNS_WIDTH)
        table.add_column("arm", style="bold", no_wrap=True, max_width=most, overflow="ellipsis")
        for name in ("depth", "done", "failed", "best"):
            table.add_column(name, justify="right", no_wrap=True)
        rows = list(self.tallies.items())
        room = max(3, self.console.height - 6)
        open_ = [row for row in rows if row[1].done < row[1].total] if len(rows) > room else rows
        for (arm, depth), tally in open_[:room]:
            best = f"{min(tally.losses):.3f}" if tally.losses else ""
            failed = Text(str(tally.failed or ""), style="red")
            table.add_row(arm, str(depth), f"{tally.done}/{tally.total}", failed, best)
        hidden = len(rows) - min(len(open_), room)
        more = [Text(f"and {hidden} more rows", style="dim")] if hidden else []
        return Group(table, *more, Text(self._footer_text(), style="dim"))

    def _footer_text(self) -> str:
        done, total = len(self.results), len(self.cells)
        now = ", ".join(f"{step}" for step, _ in self.running.values())
        at = f"; at step {now} of {self.steps}" if now else ""
        return f"{done} of {total} cells, {format_duration(self.remaining_seconds())} left{at}"


class LogLines(ComparisonReporter):
    """A line for each cell that ends, and every few seconds, for logs."""

    last_printed_at = 0.0

    def on_cell_event(self, event: Event) -> None:
        """Write one, if there is something to say."""
        super().on_cell_event(event)
        if event.kind == "ended" and event.end is not None:
            told = f"loss {event.end.loss:.4f}" if event.end.ending == "done" else event.end.ending
            why = f" ({event.end.why})" if event.end.why else ""
            self._print_line(f"{event.job.name}: {told}{why}")
        elif time.monotonic() - self.last_printed_at > LOG_INTERVAL_SECONDS and self.running:
            now = ", ".join(f"{name} at {step}" for name, (step, _) in self.running.items())
            self._print_line(now)

    def _print_line(self, text: str) -> None:
        self.last_printed_at = time.monotonic()
        count = f"{len(self.results)}/{len(self.cells)}"
        self.console.print(f"{count} | {text} | {format_duration(self.remaining_seconds())} left")


def _tally_key(cell: Cell) -> tuple[str, int]:
    return cell.arm.name, cell.depth


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds; a question mark where nothing is known.

    >>> clock(3725), clock(math.nan)
    ('1:02:05', '?')
    """
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
