"""A comparison to look at, on standard error: a live table on a terminal, lines elsewhere."""

import math
import time
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.cell_result import Finished
from addnorm.comparison.engines.base import Event
from addnorm.comparison.grid import Cell
from addnorm.comparison.outcomes import ENOUGH, progress
from addnorm.comparison.run import Audience

NUMBERS = 32
"""Columns of the table that are not the arm's name."""
SECONDS = 10.0
"""Between two lines, where there is no terminal."""


@dataclass
class _Tally:
    """How an arm at a depth is doing."""

    total: int = 0
    done: int = 0
    failed: int = 0
    losses: list[float] = field(default_factory=list)


class Talk(Audience):
    """What both have in common: counting, and the time that is left."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self.interrupted = False
        self.tallies: dict[tuple[str, int], _Tally] = {}
        self.cells: dict[str, Cell] = {}
        self.running: dict[str, tuple[int, float]] = {}
        """Step and training loss of the cells at work."""
        self.begun, self.work, self.steps, self.workers = time.monotonic(), 0.0, 1, 1
        self.ends: dict[str, Finished] = {}
        self.baseline = math.nan

    def began(self, study: Study, workers: int) -> None:
        """Say what is compared, and what is done already."""
        spec = study.spec
        self.steps, self.workers, self.begun = spec.steps, workers, time.monotonic()
        self.baseline = study.ground.baseline if study.ground else math.nan
        for each in study.cells:
            self.cells[each.cell.name] = each.cell
            self.tallies.setdefault(_row(each.cell), _Tally()).total += 1
            if each.end is not None and each.state != "crashed":
                self._count(each.cell, each.end)
        done = len(self.ends)
        self.said(
            f"{len(study.cells)} cells of {spec.steps} steps, {workers} at a time; "
            f"study {spec.digest} in {study.folder}"
        )
        if done:
            self.said(f"going on: {done} of {len(study.cells)} are done already")

    def happened(self, event: Event) -> None:
        """Count."""
        name = event.job.name
        if event.what == "began":
            self.running[name] = (0, math.nan)
        elif event.what == "stepped":
            before = self.running.get(name, (0, math.nan))
            if event.step > before[0] > 0:
                self.work += (event.step - before[0]) * self.cells[name].depth
            self.running[name] = (event.step, event.loss)
        else:
            self.running.pop(name, None)
        if event.what == "ended" and event.end is not None:
            self._count(self.cells[name], event.end)

    def ended(self, study: Study, *, interrupted: bool) -> None:
        """Say where it stands."""
        self.interrupted = interrupted
        if interrupted:
            self.said("interrupted; the same command goes on from here")

    def said(self, words: str) -> None:
        """On a line of its own."""
        self.console.print(f"addnorm: {words}")

    def close(self) -> None:
        """Leave the terminal as it should be, however it ended."""

    def left(self) -> float:
        """Seconds until the end, by the work done so far; a layer's step is the unit."""
        ahead = 0.0
        for name, cell in self.cells.items():
            if name not in self.ends:
                ahead += (self.steps - self.running.get(name, (0, 0.0))[0]) * cell.depth
        passed = time.monotonic() - self.begun
        return ahead * passed / self.work if self.work else math.nan

    def failed(self, end: Finished) -> bool:
        """Whether a cell did not train, as far as can be told before all have ended."""
        if end.ending != "done":
            return end.ending != "cut"
        losses = (each.loss for each in self.ends.values() if math.isfinite(each.loss))
        best = min(losses, default=math.inf)
        return not progress(end.loss, baseline=self.baseline, best=best) >= ENOUGH

    def _count(self, cell: Cell, end: Finished) -> None:
        self.ends[cell.name] = end
        for tally in self.tallies.values():
            tally.done, tally.failed, tally.losses = 0, 0, []
        for name, each in self.ends.items():  # a new best may show others to be stuck
            tally = self.tallies[_row(self.cells[name])]
            tally.done += 1
            if self.failed(each):
                tally.failed += 1
            elif math.isfinite(each.loss):
                tally.losses.append(each.loss)


class Board(Talk):
    """One table that moves."""

    def __init__(self) -> None:
        super().__init__()
        self.live = Live(
            get_renderable=self._drawn, console=self.console, refresh_per_second=2, transient=True
        )

    def began(self, study: Study, workers: int) -> None:
        """Show the table."""
        super().began(study, workers)
        self.live.start()

    def ended(self, study: Study, *, interrupted: bool) -> None:
        """Take it away."""
        self.live.stop()
        super().ended(study, interrupted=interrupted)

    def close(self) -> None:
        """Also if it did not end well: the cursor must come back."""
        self.live.stop()

    def _drawn(self) -> Group:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
        most = max(8, self.console.width - NUMBERS)
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
        return Group(table, *more, Text(self._foot(), style="dim"))

    def _foot(self) -> str:
        done, total = len(self.ends), len(self.cells)
        now = ", ".join(f"{step}" for step, _ in self.running.values())
        at = f"; at step {now} of {self.steps}" if now else ""
        return f"{done} of {total} cells, {clock(self.left())} left{at}"


class Lines(Talk):
    """A line for each cell that ends, and every few seconds, for logs."""

    last = 0.0

    def happened(self, event: Event) -> None:
        """Write one, if there is something to say."""
        super().happened(event)
        if event.what == "ended" and event.end is not None:
            told = f"loss {event.end.loss:.4f}" if event.end.ending == "done" else event.end.ending
            why = f" ({event.end.why})" if event.end.why else ""
            self._say(f"{event.job.name}: {told}{why}")
        elif time.monotonic() - self.last > SECONDS and self.running:
            now = ", ".join(f"{name} at {step}" for name, (step, _) in self.running.items())
            self._say(now)

    def _say(self, words: str) -> None:
        self.last = time.monotonic()
        count = f"{len(self.ends)}/{len(self.cells)}"
        self.console.print(f"{count} | {words} | {clock(self.left())} left")


def _row(cell: Cell) -> tuple[str, int]:
    return cell.arm.name, cell.depth


def clock(seconds: float) -> str:
    """Hours, minutes and seconds; a question mark where nothing is known.

    >>> clock(3725), clock(math.nan)
    ('1:02:05', '?')
    """
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
