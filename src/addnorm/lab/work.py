"""One cell, trained and measured in the process that calls: what every engine runs."""

import math
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from errno import EDQUOT, ENOSPC, EROFS
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

from addnorm.core.errors import UserError
from addnorm.core.rows import Row, read_rows
from addnorm.data.corpus import Corpus
from addnorm.decode.answers import classify, continue_text, translate
from addnorm.decode.evaluate import evaluate
from addnorm.decode.options import Options
from addnorm.lab.finished import END, ERROR, Finished, beside
from addnorm.lab.judge import Course
from addnorm.train import folder as files
from addnorm.train.loop import train
from addnorm.train.progress import Outcome, Progress, Watcher
from addnorm.train.recipe import Recipe
from addnorm.train.run import Run

SCORES = {"translate": "chrf", "lm": "bits_per_character", "classify": "accuracy"}
"""The score of each task that is told first: chrF, since BLEU is 0 on phrases of a few words."""
SAMPLES = 6
PULSE = 0.2
"""Seconds between two signs of life."""
PATIENCE = 60.0
"""Seconds that a cell waits for another process that works on it."""

Tell = Callable[[int, float], None]
"""Called with the step and its loss."""


class NoRoom(UserError):
    """The disk is full: no cell can go on, and none of them is to blame."""


@dataclass(frozen=True)
class Job:
    """All that is needed to train one cell, wherever that is."""

    name: str
    recipe: Recipe
    folder: Path
    score: Path | None
    """Corpus of the records that are answered at the end."""
    until: int | None = None
    """Step after which it pauses, to be judged before it goes on; None for the end."""


def work(job: Job, tell: Tell) -> Finished | None:
    """Train the cell, or go on with it; None if it was interrupted or paused.

    Whatever goes wrong inside is a result, with the reason; only a full disk is everybody's. A
    cell of a leader who was killed may still be at work: it is waited for, and its end is taken.
    """
    until = time.monotonic() + PATIENCE
    while True:
        with files.alone(job.folder.with_name(f".{job.folder.name}.lock")) as ours:
            if (end := Finished.read(job.folder)) is not None:
                return end
            if ours:
                return _worked(job, tell)
        if time.monotonic() > until:
            return None
        time.sleep(PULSE)


def _worked(job: Job, tell: Tell) -> Finished | None:
    at_rest = _peak()
    try:
        try:
            finished = _finished(job, tell)
        except Exception as problem:
            if _no_room(problem):
                raise
            beside(job.folder, ERROR).write_text(traceback.format_exc(), encoding="utf-8")
            finished = Finished("crashed", _reason(problem))
        if finished is None:
            return None
        finished = replace(finished, memory=_peak() - (0 if _on_gpu() else at_rest))
        finished.save(job.folder)
    except Exception as problem:
        if _no_room(problem):
            raise NoRoom(str(problem)) from None
        raise
    if finished.ending != "crashed":  # whoever wants the weights trains this one cell again
        shutil.rmtree(job.folder / files.CHECKPOINTS, ignore_errors=True)
    return finished


def _finished(job: Job, tell: Tell) -> Finished | None:
    """How the cell ended; None if it has not."""
    pulse = _Pulse(tell)
    outcome = _train(job, pulse)
    if outcome.ending == "interrupted":
        return None
    rows = list(read_rows(job.folder / files.ROWS))
    course, done = Course.of(rows), outcome.ending == "done"
    scores, samples = _answers(job, pulse) if done and job.score else ({}, ())
    return Finished(
        outcome.ending,
        outcome.why,
        step=outcome.progress.step,
        loss=course.last if done else math.nan,
        lowest=course.lowest,
        scores=scores,
        samples=samples,
        tokens=outcome.progress.tokens,
        seconds=outcome.progress.seconds,
        rate=pulse.rate,
        parameters=files.read_arrangement(job.folder)["parameters"],
    )


def _train(job: Job, pulse: "_Pulse") -> Outcome:
    try:
        return train(job.recipe, job.folder, watcher=pulse, until=job.until)
    except UserError:
        moved = (job.folder / files.CONFIG).is_file() and not beside(job.folder, END).exists()
        if not moved or files.read_config(job.folder).flat() == job.recipe.flat():
            raise
        shutil.rmtree(job.folder)  # its data lay elsewhere, when it was begun
        return train(job.recipe, job.folder, watcher=pulse, until=job.until)


def _answers(job: Job, pulse: "_Pulse") -> tuple[dict[str, float], tuple[str, ...]]:
    """Scores on the records that all cells answer, and the answers to the first of them.

    By the model at its end, to which the loss beside them belongs.
    """
    run, score = Run.open(job.folder, which="last"), job.score
    assert score is not None
    options = Options() if run.task == "translate" else None  # greedy: quick, and the same for all
    told = evaluate(run, "test", data=score, options=options, tick=pulse.tick)
    scores = {name: value for name, value in told.items() if isinstance(value, float)}
    return scores, tuple(_samples(run, score, options))


def _samples(run: Run, score: Path, options: Options | None) -> list[str]:
    records = list(islice(Corpus.open(score).records("test"), SAMPLES))
    if run.task == "translate":
        sources = (record["source"] for record in records)
        return [answers[0].text for answers in translate(run, sources, options)]
    if run.task == "classify":
        labels = classify(run, (record["text"] for record in records))
        return [f"{each.label} ({each.probability:.0%})" for each in labels]
    prompts = [prompt_of(record["text"]) for record in records]
    return [answers[0].text for answers in continue_text(run, prompts, Options(max_new=60))]


def prompt_of(text: str) -> str:
    """The beginning of a text, which a language model continues."""
    return " ".join(text.split())[:40]


class _Pulse(Watcher):
    """Signs of life, not too many; and the speed, step by step."""

    def __init__(self, tell: Tell) -> None:
        self.tell, self.last = tell, 0.0
        self.rates: list[float] = []
        self.step, self.loss = 0, math.nan

    def began(self, progress: Progress, facts: dict[str, Any]) -> None:
        """From where it goes on."""
        self.mark, self.step = (_spent(), progress.tokens), progress.step
        self.tell(progress.step, math.nan)

    def stepped(self, progress: Progress, loss: float) -> None:
        """After an update."""
        now, (before, tokens) = _spent(), self.mark
        self.rates.append((progress.tokens - tokens) / max(now - before, 1e-9))
        self.mark, self.step, self.loss = (now, progress.tokens), progress.step, loss
        self.tick(0, 0)

    def measured(self, rows: list[Row]) -> None:
        """After a validation, say."""
        self.tick(0, 0)

    def tick(self, count: int, total: int) -> None:
        """Something goes on that is no step."""
        if time.monotonic() - self.last >= PULSE:
            self.last = time.monotonic()
            self.tell(self.step, self.loss)

    @property
    def rate(self) -> float:
        """Tokens a second: the median over steps, so that validations do not count."""
        return median(self.rates) if self.rates else math.nan


def _spent() -> float:
    """Seconds that this process worked, whoever else was on the machine; on a GPU, that passed."""
    return time.perf_counter() if _on_gpu() else time.process_time()


def _on_gpu() -> bool:
    """Whether this process has begun to use one."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _peak() -> int:
    """The most memory that this process had so far, in bytes; on a GPU, of the GPU."""
    if _on_gpu():
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _no_room(problem: BaseException) -> bool:
    """Whether it was the disk, at any remove."""
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (ENOSPC, EDQUOT, EROFS):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _reason(problem: Exception) -> str:
    memory = isinstance(problem, MemoryError | torch.OutOfMemoryError)
    if memory or "allocate memory" in str(problem):
        return "out of memory"
    words = " ".join(str(problem).split())
    return words if isinstance(problem, UserError) else f"{type(problem).__name__}: {words}"
