"""A comparison from its spec to its result; interrupted anywhere and called again, it goes on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from addnorm.comparison import layout as files
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.callbacks import ComparisonCallback
from addnorm.comparison.cell_result import RESULT_SUFFIX, CellResult, sidecar_path
from addnorm.comparison.engines.base import Engine, Event
from addnorm.comparison.grid import Cell
from addnorm.comparison.halving import halving_steps, stop_worse_half
from addnorm.comparison.job import Job
from addnorm.comparison.shared_data import SharedData, check_data, prepare
from addnorm.comparison.spec import Comparison
from addnorm.core.files import write_json
from addnorm.core.interrupts import graceful_shutdown


def compare(
    spec: Comparison,
    folder: str | Path,
    *,
    engine: Engine | None = None,
    callback: ComparisonCallback | None = None,
) -> Study:
    """Train every cell that has not ended, and judge them all; `result.json` is written.

    Cells that crashed are tried once more. In a script, call it under `if __name__ == "__main__"`:
    cells are processes.
    """
    from addnorm.comparison.engines.local import LocalEngine

    folder, callback = Path(folder).absolute(), callback or ComparisonCallback()
    spec.check()
    check_data(spec)
    with files.claim_folder(folder, spec), graceful_shutdown() as stop_flag:
        ground = prepare(spec, folder)
        engine = engine or LocalEngine()
        callback.on_comparison_start(Study.open(folder), engine.workers)
        _remove_crash_results(spec, folder)
        for until in halving_steps(spec):
            jobs = [
                _build_job(spec, cell, folder, ground, until)
                for cell in _find_waiting_cells(spec, folder)
            ]
            engine.run(jobs, callback.on_cell_event, stop_flag)
            if stop_flag.requested:
                break
            if until is not None:
                for cell, end in stop_worse_half(spec, folder, until):
                    job = _build_job(spec, cell, folder, ground, until)
                    callback.on_cell_event(Event(job, "ended", end.step, end=end))
        study = replace(Study.open(folder), interrupted=stop_flag.requested)
        write_json(folder / files.RESULT, study.result())
        callback.on_comparison_end(study)
        return study


def _find_waiting_cells(spec: Comparison, folder: Path) -> Sequence[Cell]:
    """Cells to run: first seeds first, so that a picture comes early; deep ones first, so that no
    long one is left for the end.
    """
    found = [c for c in spec.cells() if CellResult.read(folder / files.CELLS / c.name) is None]
    return sorted(found, key=lambda cell: (cell.seed, -cell.depth))


def _remove_crash_results(spec: Comparison, folder: Path) -> None:
    """What crashed in an earlier sitting is tried once more."""
    for cell in spec.cells():
        own = folder / files.CELLS / cell.name
        end = CellResult.read(own)
        if end is not None and end.ending == "crashed":
            sidecar_path(own, RESULT_SUFFIX).unlink()


def _build_job(
    spec: Comparison, cell: Cell, folder: Path, shared_data: SharedData, pause_step: int | None
) -> Job:
    return Job(
        name=cell.name,
        recipe=spec.recipe(cell, data=shared_data.data, tokenizer=folder / files.TOKENIZER),
        folder=folder / files.CELLS / cell.name,
        score=folder / files.SCORE if spec.score else None,
        pause_step=pause_step,
    )
