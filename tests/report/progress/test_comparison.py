"""Progress of a comparison: counts, best loss, remaining time."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.engines.base import Event
from addnorm.comparison.parse import parse_comparison
from addnorm.report.progress import comparison
from addnorm.report.progress.base import format_time_left
from tests.comparison.synthetic_study import BASELINE, write_synthetic_study

SPEC = parse_comparison({"wiring": "post_ln,pre_ln", "depth": "2,4", "lr": 1e-3, "seeds": 2})


def job(cell):
    return SimpleNamespace(name=cell.name, folder=Path("cells") / cell.name)


@pytest.fixture
def study(tmp_path):
    return Study.open(
        write_synthetic_study(tmp_path / "a", SPEC, lambda cell: "waiting", site_rows=False)
    )


def start_reporter(kind, study, width=80):
    reporter = kind()
    reporter.console = Console(file=io.StringIO(), width=width, height=20, soft_wrap=True)
    comparison.ComparisonReporter.on_comparison_start(reporter, study, 2)
    return reporter


def end(reporter, cell, loss, ending="done", why=""):
    reporter.on_cell_event(Event(job(cell), "began"))
    reporter.on_cell_event(Event(job(cell), "ended", 200, loss, CellResult(ending, why, loss=loss)))


def test_new_best_loss_marks_earlier_cells_as_failed(study):
    reporter = start_reporter(comparison.LogLines, study)
    first, second = SPEC.cells()[:2]
    end(reporter, first, BASELINE - 0.3)
    row = reporter.tallies[("post_ln", 2)]
    assert (row.done, row.total, row.failed, row.losses) == (1, 2, 0, [BASELINE - 0.3])
    end(reporter, second, 0.1)
    row = reporter.tallies[("post_ln", 2)]
    assert (row.done, row.failed, row.losses) == (2, 1, [0.1])


@pytest.mark.parametrize("kind", [comparison.LogLines, comparison.LiveTable])
def test_reasons_of_waiting_cells_are_shown(study, kind):
    reporter = start_reporter(kind, study)
    for cell in SPEC.cells()[:3]:
        reporter.on_cell_event(Event(job(cell), "waiting", reason="PartitionConfig"))
    reporter.on_cell_event(Event(job(SPEC.cells()[0]), "began"))
    assert reporter.describe_waiting() == "in the queue: 2 PartitionConfig"
    if kind is comparison.LogLines:
        assert "in the queue: 1 PartitionConfig" in reporter.console.file.getvalue()
    else:
        assert reporter._footer_text().endswith("in the queue: 2 PartitionConfig")


def test_crashed_and_diverged_cells_count_as_failed(study):
    reporter = start_reporter(comparison.LogLines, study)
    for cell, ending in zip(SPEC.cells(), ("crashed", "diverged"), strict=False):
        end(reporter, cell, float("nan"), ending, "out of memory")
    assert reporter.tallies[("post_ln", 2)].failed == 2
    assert "crashed (out of memory)" in reporter.console.file.getvalue()


def test_remaining_time_counts_layers_and_steps(study, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(comparison.time, "monotonic", lambda: now[0])
    reporter = start_reporter(comparison.LogLines, study)
    assert format_time_left(reporter.remaining_seconds()) == "time left unknown"
    cell = next(cell for cell in SPEC.cells() if cell.depth == 2)
    reporter.on_cell_event(Event(job(cell), "began"))
    reporter.on_cell_event(Event(job(cell), "stepped", 1, 3.0))
    now[0] += 99.0
    reporter.on_cell_event(Event(job(cell), "stepped", 100, 3.0))
    # 99 steps of 2 layers took 99 seconds; 4 cells of 2 layers and 4 of 4 are left, less 100 steps
    assert reporter.remaining_seconds() == pytest.approx(
        (4 * 200 * 2 + 4 * 200 * 4 - 100 * 2) * 99 / (99 * 2)
    )


def test_remaining_time_counts_cells_that_end_without_a_report(study, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(comparison.time, "monotonic", lambda: now[0])
    reporter = start_reporter(comparison.LogLines, study)
    cell = next(cell for cell in SPEC.cells() if cell.depth == 2)
    reporter.on_cell_event(Event(job(cell), "began"))
    now[0] += 10.0
    result = CellResult("done", loss=0.5, step=200)
    reporter.on_cell_event(Event(job(cell), "ended", 200, 0.5, result))
    # 200 steps of 2 layers took 10 seconds; 3 cells of 2 layers and 4 of 4 are left
    assert reporter.remaining_seconds() == pytest.approx((3 * 2 + 4 * 4) * 200 * 10 / (200 * 2))


def test_remaining_time_counts_halved_cells_once(study, monkeypatch):
    reporter = start_reporter(comparison.LogLines, study)
    cell = SPEC.cells()[0]
    reporter.on_cell_event(Event(job(cell), "ended", 50, end=CellResult("cut", step=50)))
    assert reporter.work_done == 0


@pytest.mark.parametrize("width", [40, 80, 120])
def test_table_fits_the_terminal(study, width):
    reporter = start_reporter(comparison.LiveTable, study, width)
    end(reporter, SPEC.cells()[0], 0.5)
    console = Console(file=io.StringIO(), width=width)
    console.print(reporter._render_table())
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert any("post_ln" in line and "1/2" in line and "0.500" in line for line in lines)
    assert "1 of 8 cells" in " ".join(lines)


def test_long_table_shows_unfinished_rows(tmp_path):
    spec = parse_comparison({"wiring": "post_ln,pre_ln", "depth": list(range(1, 31)), "lr": 1e-3})
    study = Study.open(
        write_synthetic_study(tmp_path / "a", spec, lambda cell: "waiting", site_rows=False)
    )
    reporter = start_reporter(comparison.LiveTable, study)
    for cell in spec.cells()[:2]:
        end(reporter, cell, 0.5)
    console = Console(file=io.StringIO(), width=80)
    console.print(reporter._render_table())
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= 20
    assert "more rows" in console.file.getvalue()


def test_finished_cells_are_counted_at_the_start(tmp_path):
    folder = write_synthetic_study(
        tmp_path / "a", SPEC, lambda cell: "waiting" if cell.seed else "trained", site_rows=False
    )
    reporter = start_reporter(comparison.LogLines, Study.open(folder))
    assert "resuming: 4 of 8 cells are already done" in reporter.console.file.getvalue()
    assert all(tally.done == 1 for tally in reporter.tallies.values())
