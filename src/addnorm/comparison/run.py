"""Engine of a comparison: from the spec to the result, resumable at any point.

The folder of a comparison holds all state. `run_comparison` claims the folder, prepares the data
that all cells share, trains every cell without a result and writes `result.json`. Called again
after an interruption, it continues with the cells that are not finished.

`addnorm.compare` calls this function and writes the report as well; see `report/comparison`.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from addnorm.comparison import folder_layout as files
from addnorm.comparison.analysis.export import study_to_dict
from addnorm.comparison.analysis.study import Study, read_comparison
from addnorm.comparison.callbacks import ComparisonCallback
from addnorm.comparison.cell_job import Job
from addnorm.comparison.cell_result import RESULT_SUFFIX, CellResult, sidecar_path
from addnorm.comparison.engines.base import Engine, Event
from addnorm.comparison.engines.local import LocalEngine
from addnorm.comparison.extend import (
    Budget,
    describe_extension,
    propose_learning_rates,
    propose_seeds,
)
from addnorm.comparison.grid import Cell
from addnorm.comparison.halving import halving_steps, stop_worse_half
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks import get_task
from addnorm.comparison.tasks.used_plugins import find_used_plugins
from addnorm.core.errors import UserError
from addnorm.core.files import remove_stale_files, write_json, write_yaml
from addnorm.core.interrupts import StopFlag, graceful_shutdown
from addnorm.core.locks import folder_lock

MAX_VALUE_CHARACTERS = 120
"""Longest value that an error message shows in full."""


def check_comparison(spec: Comparison) -> None:
    """Reject a spec whose models or data do not work, before anything is written or trained."""
    task = get_task(spec.task)
    task.check(spec)
    task.check_data(spec)


def run_comparison(
    spec: Comparison,
    folder: str | Path,
    *,
    engine: Engine | None = None,
    callback: ComparisonCallback | None = None,
    until: Literal["decided"] | None = None,
    budget: Budget | None = None,
) -> Study:
    """Train every unfinished cell, classify all cells and write `result.json`.

    Cells that crashed in an earlier session are tried again. Ctrl-C and SIGTERM pause the cells at
    their next step; the function then returns the incomplete study. Learning rates and seeds may be
    added, as `extend.py` describes; the spec in the folder records them.

    Args:
        spec: what to compare
        folder: output folder; an unfinished comparison with the same spec in it is resumed
        engine: where the cells run; by default one process per core or GPU of this machine
        callback: receives the progress of the comparison
        until: `decided` adds seeds to the arms that are too close to the best one
        budget: limit of the seeds added; by default as many cells as the comparison has without

    Raises:
        UserError: the spec is not valid, or the folder contains something else
    """
    folder, callback = Path(folder).absolute(), callback or ComparisonCallback()
    check_comparison(spec)
    if until not in (None, "decided"):
        raise UserError(f"until: expected decided, got {until!r}")
    with claim_folder(folder, spec) as spec, graceful_shutdown() as stop_flag:
        shared_data = get_task(spec.task).prepare(spec, folder)
        engine = engine or LocalEngine()
        callback.on_comparison_start(Study.open(folder), engine.workers)
        _remove_crash_results(spec, folder)
        budget = budget or Budget(cells=len(spec.without_seed_extensions().cells()))
        while True:
            _run_unfinished_cells(spec, folder, shared_data, engine, callback, stop_flag)
            study = replace(Study.open(folder), interrupted=stop_flag.requested)
            extension = None if stop_flag.requested else propose_learning_rates(study)
            if extension is None and until is not None and not stop_flag.requested:
                extension = propose_seeds(study, budget, workers=engine.workers)
            if extension is None:
                break
            message = describe_extension(extension, spec.cells())
            spec = spec.extend(extension)
            write_yaml(folder / files.SPEC, spec.to_yaml())
            callback.on_extension(Study.open(folder), message)
        write_json(folder / files.RESULT, study_to_dict(study))
        if stop_flag.requested and engine.stop_message:
            callback.on_message(engine.stop_message)
        callback.on_comparison_end(study)
        return study


def _run_unfinished_cells(
    spec: Comparison,
    folder: Path,
    shared_data: SharedData,
    engine: Engine,
    callback: ComparisonCallback,
    stop_flag: StopFlag,
) -> None:
    for pause_step in halving_steps(spec):
        jobs = [
            _build_job(spec, cell, folder, shared_data, pause_step)
            for cell in _find_unfinished_cells(spec, folder)
        ]
        engine.run(jobs, callback.on_cell_event, stop_flag)
        if stop_flag.requested:
            return
        if pause_step is not None:
            for cell, result in stop_worse_half(spec, folder, pause_step):
                job = _build_job(spec, cell, folder, shared_data, pause_step)
                callback.on_cell_event(Event(job, "ended", result.step, end=result))


@contextmanager
def claim_folder(folder: Path, spec: Comparison) -> Iterator[Comparison]:
    """Lock the folder for one comparison and yield its spec, which the folder then holds.

    Until the data are prepared, a changed spec replaces the one in the folder. Afterwards the spec
    in the folder counts: it may have extensions.

    Raises:
        UserError: the folder contains other files or a different comparison, or is in use
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"expected a new or empty output folder, got {folder}, which is a file")
    _reject_foreign_files(folder)
    with folder_lock(folder, activity="comparing"):
        if (folder / files.FACTS).exists():
            spec = _read_same_comparison(folder, spec)
        else:
            write_yaml(folder / files.SPEC, spec.to_yaml())
        for name in (files.CELLS, files.DATA, files.SCORE):
            remove_stale_files(folder / name)
        yield spec


def _reject_foreign_files(folder: Path) -> None:
    if not folder.is_dir() or files.is_comparison(folder):
        return
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if names:
        raise UserError(
            f"expected a new or empty output folder, got {folder}, which contains "
            f"{', '.join(names[:3])}, ... and no comparison"
        )


def _read_same_comparison(folder: Path, spec: Comparison) -> Comparison:
    """Return the spec in the folder, which may have extensions that `spec` does not have."""
    stored = read_comparison(folder)
    if spec in (stored, stored.without_extensions()):
        return stored
    before, now = stored.without_extensions().to_flat_dict(), spec.to_flat_dict()
    changes = "; ".join(
        f"{name} was {_format_value(before, name)}, now {_format_value(now, name)}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    )
    raise UserError(
        f"{folder} holds another comparison: {changes}; choose another output folder, or rerun the "
        "original command to resume it"
    )


def _format_value(values: dict[str, Any], name: str) -> str:
    if name not in values:
        return "left out"
    text = json.dumps(values[name], ensure_ascii=False)
    short = text[: MAX_VALUE_CHARACTERS - 3] + "..."
    return text if len(text) <= MAX_VALUE_CHARACTERS else short


def _find_unfinished_cells(spec: Comparison, folder: Path) -> Sequence[Cell]:
    """Return the cells without a result, in the order in which they run.

    The first seed of every setting runs first, so that early results cover the whole grid. Within
    a seed the deepest cells run first, so that no long cell remains at the end.
    """
    cells = [c for c in spec.cells() if CellResult.read(folder / files.CELLS / c.name) is None]
    return sorted(cells, key=lambda cell: (cell.seed, -cell.depth))


def _remove_crash_results(spec: Comparison, folder: Path) -> None:
    for cell in spec.cells():
        run = folder / files.CELLS / cell.name
        result = CellResult.read(run)
        if result is not None and result.ending == "crashed":
            sidecar_path(run, RESULT_SUFFIX).unlink()


def preview_jobs(spec: Comparison, folder: Path) -> list[Job]:
    """Return a job for every cell, to show what an engine would do; nothing is prepared."""
    task, data, tokenizer = get_task(spec.task), folder / files.DATA, folder / files.TOKENIZER
    return [
        Job(
            name=cell.name,
            recipe=task.recipe(spec, cell, data=data, tokenizer=tokenizer),
            folder=folder / files.CELLS / cell.name,
            score=None,
        )
        for cell in spec.cells()
    ]


def _build_job(
    spec: Comparison, cell: Cell, folder: Path, shared_data: SharedData, pause_step: int | None
) -> Job:
    recipe = get_task(spec.task).recipe(
        spec, cell, data=shared_data.data, tokenizer=folder / files.TOKENIZER
    )
    return Job(
        name=cell.name,
        recipe=recipe,
        folder=folder / files.CELLS / cell.name,
        score=folder / files.SCORE if spec.score else None,
        pause_step=pause_step,
        shared_data=shared_data,
        plugins=find_used_plugins(spec),
    )
