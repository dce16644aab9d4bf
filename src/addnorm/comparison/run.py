"""A comparison from its spec to its result; interrupted anywhere and called again, it goes on."""

from collections.abc import Sequence
from pathlib import Path

from addnorm.comparison import layout as files
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.cell_result import END, Finished, beside
from addnorm.comparison.engines.base import Engine, Event
from addnorm.comparison.grid import Cell
from addnorm.comparison.halving import cut, rungs
from addnorm.comparison.job import Job
from addnorm.comparison.shared_data import Ground, check_data, prepare
from addnorm.comparison.spec import Comparison
from addnorm.train.throughput import stoppable


class Audience:
    """Whoever follows a comparison; every method may stay as it is."""

    def began(self, study: Study, workers: int) -> None:
        """It begins, or goes on; the study tells what is done already."""

    def happened(self, event: Event) -> None:
        """Something happened to a cell."""

    def ended(self, study: Study, *, interrupted: bool) -> None:
        """It is over, or paused."""


def compare(
    spec: Comparison,
    folder: str | Path,
    *,
    engine: Engine | None = None,
    audience: Audience | None = None,
) -> Study:
    """Train every cell that has not ended, and judge them all; `result.json` is written.

    Cells that crashed are tried once more. In a script, call it under `if __name__ == "__main__"`:
    cells are processes.
    """
    from addnorm.comparison.engines.local import LocalEngine

    folder, audience = Path(folder).absolute(), audience or Audience()
    spec.check()
    check_data(spec)
    with files.claimed(folder, spec), stoppable() as bell:
        ground = prepare(spec, folder)
        engine = engine or LocalEngine()
        audience.began(Study.open(folder), engine.workers)
        _forget_crashes(spec, folder)
        for until in rungs(spec):
            jobs = [_job(spec, cell, folder, ground, until) for cell in _waiting(spec, folder)]
            engine.run(jobs, audience.happened, bell)
            if bell.rung:
                break
            if until is not None:
                for cell, end in cut(spec, folder, until):
                    job = _job(spec, cell, folder, ground, until)
                    audience.happened(Event(job, "ended", end.step, end=end))
        study = Study.open(folder)
        files.write_json(folder / files.RESULT, study.result())
        audience.ended(study, interrupted=bell.rung)
        return study


def _waiting(spec: Comparison, folder: Path) -> Sequence[Cell]:
    """Cells to run: first seeds first, so that a picture comes early; deep ones first, so that no
    long one is left for the end.
    """
    found = [c for c in spec.cells() if Finished.read(folder / files.CELLS / c.name) is None]
    return sorted(found, key=lambda cell: (cell.seed, -cell.depth))


def _forget_crashes(spec: Comparison, folder: Path) -> None:
    """What crashed in an earlier sitting is tried once more."""
    for cell in spec.cells():
        own = folder / files.CELLS / cell.name
        end = Finished.read(own)
        if end is not None and end.ending == "crashed":
            beside(own, END).unlink()


def _job(spec: Comparison, cell: Cell, folder: Path, ground: Ground, until: int | None) -> Job:
    return Job(
        name=cell.name,
        recipe=spec.recipe(cell, data=ground.data, tokenizer=folder / files.TOKENIZER),
        folder=folder / files.CELLS / cell.name,
        score=folder / files.SCORE if spec.score else None,
        until=until,
    )
