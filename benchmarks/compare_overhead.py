"""Overhead of a comparison beyond training its cells, and the start-up time of a cell.

    OMP_NUM_THREADS=1 python benchmarks/compare_overhead.py [CELLS]

The same recipes are trained three times: sequentially with `train` in this process, where all
modules are imported; by a shell-like loop over `addnorm train`; and by `compare` with one worker,
which also scores and samples each cell. Times are processor times of all processes, which other
programs on the machine hardly change. The start-up time of a cell lasts from the fork to its first
update.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.callbacks import ComparisonCallback
from addnorm.comparison.engines.local import LocalEngine
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.tasks import get_task
from addnorm.report.comparison.page import write_comparison_report
from addnorm.train.trainer import train


class StartupTimer(ComparisonCallback):
    """Callback that records the seconds from the start to the first step of each cell."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.seconds: list[float] = []

    def on_cell_event(self, event) -> None:
        if event.kind == "began":
            self.started[event.job.name] = time.monotonic()
        elif event.kind == "stepped" and event.step and event.job.name in self.started:
            self.seconds.append(time.monotonic() - self.started.pop(event.job.name))


def cpu_seconds() -> float:
    """Return the processor seconds of this process and its finished children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usages)


def main(cells: int) -> None:
    """Print the processor times and their ratios."""
    torch.set_num_threads(1)
    spec = parse_comparison({"wiring": "pre_ln", "depth": 6, "lr": 1e-3, "seeds": cells})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared = get_task(spec.task).prepare(spec, folder / "bare")
        train_seconds = []
        for cell in spec.cells():
            tokenizer = folder / "bare" / "tokenizer.json"
            recipe = get_task(spec.task).recipe(spec, cell, data=prepared.data, tokenizer=tokenizer)
            start = cpu_seconds()
            train(recipe, folder / "bare" / cell.name)
            train_seconds.append(cpu_seconds() - start)
        bare_cost = sum(train_seconds[1:]) * cells / (cells - 1)  # the first is a warm-up
        start = cpu_seconds()
        for cell in spec.cells():
            config = folder / "bare" / cell.name / "config.yaml"
            command = [sys.executable, "-m", "addnorm", "train", spec.task, "-c", str(config)]
            subprocess.run(
                [*command, "-o", str(folder / "loop" / cell.name)], check=True, capture_output=True
            )
        loop_cost = cpu_seconds() - start
        timer, start = StartupTimer(), cpu_seconds()
        run_comparison(spec, folder / "runs", engine=LocalEngine(workers=1), callback=timer)
        _stop_server()
        cost = cpu_seconds() - start
        ends = [each.end for each in Study.open(folder / "runs").cells]
        start = time.monotonic()
        page = write_comparison_report(folder / "runs")
        print(f"{cells} cells of {spec.steps} steps, pre_ln 6+6, dim 64, one worker")
        print(f"bare training      {bare_cost:7.1f} s of processor time")
        print(f"compare            {cost:7.1f} s, imports of its server and scores included")
        print(f"loop in a shell    {loop_cost:7.1f} s, without any score")
        print(f"compare / bare     {cost / bare_cost:7.2f}")
        print(f"compare / loop     {cost / loop_cost:7.2f}")
        print(f"inside the cells   {sum(end.seconds for end in ends):7.1f} s of time in training")
        first, *others = timer.seconds
        print(f"start of a cell    {statistics.median(others):7.2f} s, the first {first:.2f} s")
        size = page.stat().st_size / 2**20
        print(f"page               {time.monotonic() - start:7.2f} s, {size:.1f} MB")


def _stop_server() -> None:
    """Stop the fork server so that RUSAGE_CHILDREN includes it and its cells."""
    from multiprocessing.forkserver import _forkserver

    _forkserver._stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
