"""Text tasks of comparisons: one adapter from `addnorm.tasks` to the interface of a comparison."""

import math
import shutil
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from addnorm.comparison import folder_layout
from addnorm.comparison.cell_job import CellRecipe, Heartbeat, Job
from addnorm.comparison.cell_result import RESULT_SUFFIX, CellResult, sidecar_path
from addnorm.comparison.grid import Cell, to_plain
from addnorm.comparison.outcomes import LossSummary
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import DEMO, Comparison
from addnorm.comparison.tasks.base import NUM_SAMPLES, DataSource, DistributedTask
from addnorm.comparison.tasks.text_data import (
    check_corpus,
    open_corpus,
    unigram_loss,
    write_scored_records,
)
from addnorm.core.errors import UserError
from addnorm.data.corpus import Corpus
from addnorm.data.tokenizer import Tokenizer
from addnorm.models import build
from addnorm.tasks import Example, Score, TextTask, evaluate
from addnorm.train import run_folder as files
from addnorm.train.environment import collect_versions, describe_machine
from addnorm.train.recipe import Recipe, list_recipe_keys
from addnorm.train.session import make_tokenizer
from addnorm.train.train_state import Outcome
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train

DEMO_RECIPE: dict[str, Any] = {
    "tokenizer": "char", "dim": 64, "heads": 4, "batch_tokens": 512,
    "dropout": 0.0, "label_smoothing": 0.0, "max_length": 128,
}  # fmt: skip
"""Recipe defaults on a demo corpus: fast on one core."""


class TextComparison(DistributedTask):
    """A text task as a comparison uses it: cells are runs of the trainer."""

    shared_keys = ("data", "tokenizer", "vocab", "max_length", "schedule", "seed", "steps")

    def __init__(self, task: TextTask) -> None:
        self.task = task
        self.name, self.noun = task.name, task.noun  # type: ignore[misc]  # class variables of Task
        self.baseline_description = task.baseline_description  # type: ignore[misc]
        self.is_encoder_decoder = task.is_encoder_decoder  # type: ignore[misc]

    def list_recipe_keys(self) -> list[str]:
        return [name for name, _, _ in list_recipe_keys(self.name)]

    def validate_keys(self, keys: Mapping[str, Any]) -> None:
        """Raise UserError for keys that give cells different data, wirings or numbers of steps."""
        for name in ("encoder_wiring", "encoder_norm"):
            if name in keys:
                raise UserError(
                    f"{name}: expected none, an arm has one wiring and one norm for all stacks; "
                    "leave it out"
                )
        if keys.get("on_spike", "log") != "log":
            raise UserError(
                f"on_spike: expected log, got {keys['on_spike']}, which gives some cells other "
                "data; leave it out"
            )
        if keys.get("valid_every") == 0:
            raise UserError(
                "valid_every: expected 1 or more, got 0; arms are compared by validation loss"
            )
        if keys.get("patience"):
            raise UserError(
                f"patience: expected 0, got {keys['patience']}, which gives some cells fewer "
                "steps; leave it out"
            )

    def recipe(
        self, spec: Comparison, cell: Cell, *, data: Path | str, tokenizer: Path | str
    ) -> Recipe:
        return Recipe.from_dict(
            # Validate, measure and save at each quarter, unless keys of the spec override it.
            dict.fromkeys(("valid_every", "save_every", "monitor_every"), max(1, spec.steps // 4))
            | {"log_every": max(1, spec.steps // 200)}
            | _shared_keys(spec)
            | {name: to_plain(value) for name, value in cell.arm.extras}
            | {
                "task": self.name,
                "data": str(data),
                "tokenizer": str(tokenizer),
                "wiring": cell.arm.wiring,
                "norm": cell.arm.norm,
                "depth": cell.depth,
                "lr": cell.lr,
                "schedule": cell.schedule(spec.schedule),
                "seed": cell.seed,
                "steps": spec.steps,
            }
        )

    def build(self, recipe: CellRecipe) -> None:
        assert isinstance(recipe, Recipe)
        classes = 2 if self.task.predicts_label else None
        build(recipe.build_config(vocab=1000, classes=classes), device="meta")

    def check(self, spec: Comparison) -> None:
        super().check(spec)
        values = [_shared_keys(spec), *(dict(arm.extras) for arm in spec.arms())]
        every = max(each.get("log_every", 1) for each in values)
        if spec.mode == "halving" and every > max(1, spec.steps // 4):
            raise UserError(
                f"log_every: expected at most {max(1, spec.steps // 4)}, a quarter of the steps, "
                f"for halving, got {every}"
            )

    def check_data(self, spec: Comparison) -> None:
        check_corpus(self.task, spec)

    def prepare_source(self, spec: Comparison, folder: Path) -> DataSource:
        """Return the corpus; a demo corpus is generated in the folder."""
        corpus = open_corpus(self.task, spec, folder)
        return DataSource(corpus.folder, corpus.digest)

    def prepare_shared_data(self, spec: Comparison, folder: Path, source: DataSource) -> SharedData:
        """Write the common tokenizer and the records to score, and compute the unigram baseline."""
        corpus = self.task.open_corpus(source.path)
        recipe = self.recipe(
            spec, spec.cells()[0], data=corpus.folder, tokenizer=get_tokenizer_name(spec)
        )
        tokenizer: Tokenizer = make_tokenizer(recipe, corpus)
        tokenizer.save(folder / folder_layout.TOKENIZER)
        if spec.score:
            write_scored_records(spec, corpus, folder / folder_layout.SCORE)
        return SharedData(
            data=str(corpus.folder),
            corpus=corpus.digest,
            tokenizer=tokenizer.digest,
            vocab=tokenizer.vocab,
            baseline=unigram_loss(corpus, tokenizer, recipe),
            counts=corpus.counts,
            machine=describe_machine(),
            versions=collect_versions(),
        )

    def check_shared_data(self, folder: Path, shared_data: SharedData) -> None:
        _check_tokenizer(folder / folder_layout.TOKENIZER, shared_data)
        if (folder / folder_layout.SCORE).exists():
            self.task.open_corpus(folder / folder_layout.SCORE).verify()

    def train_and_score(self, job: Job, heartbeat: Heartbeat) -> CellResult | None:
        """Train a cell, resuming from its last checkpoint, and score it."""
        self._check_data(job)
        outcome = _train(job, heartbeat)
        if outcome.ending == "interrupted":
            return None
        rows = list(files.read_run_rows(job.folder))
        course, done = LossSummary.from_rows(rows), outcome.ending == "done"
        scores, samples = self._score_and_sample(job, heartbeat) if done and job.score else ({}, ())
        return CellResult(
            outcome.ending,
            outcome.reason,
            step=outcome.state.step,
            loss=course.last if done else math.nan,
            lowest=course.lowest,
            scores=scores,
            samples=samples,
            tokens=outcome.state.tokens,
            seconds=outcome.state.seconds,
            rate=heartbeat.rate,
            parameters=files.read_arrangement(job.folder)["parameters"],
            recent=course.recent,
        )

    def join_training(self, job: Job) -> None:
        self._check_data(job)
        assert isinstance(job.recipe, Recipe)
        train(job.recipe, job.folder, until=job.pause_step)

    def _check_data(self, job: Job) -> None:
        """Raise `UserError` if data or tokenizer have changed since the comparison started."""
        recipe, shared_data = job.recipe, job.shared_data
        assert isinstance(recipe, Recipe)
        if shared_data is None:
            return
        if self.task.open_corpus(recipe.data).digest != shared_data.corpus:
            raise UserError(
                f"{recipe.data} has changed since the comparison started; restore it, or start "
                "again with another output folder"
            )
        _check_tokenizer(Path(recipe.tokenizer), shared_data)

    def score(self, shared_data: SharedData | None) -> Score:
        return self.task.primary_score

    def read_examples(self, folder: Path) -> list[Example]:
        corpus = self.task.open_corpus(folder / folder_layout.SCORE)
        corpus.verify("test")
        records = islice(corpus.records("test"), NUM_SAMPLES)
        return [self.task.to_example(record) for record in records]

    def is_correct(self, answer: str, expected: str) -> bool:
        return self.task.is_correct(answer, expected)

    def reproduce_command(
        self, spec: Comparison, cell: Cell, config: Path
    ) -> tuple[str, list[str]]:
        """Return the command that trains the cell again, with the same bits."""
        command = ["addnorm", "train", self.name, "-c", str(config), "-o", "weights"]
        return "one cell, with its weights", command

    def _score_and_sample(
        self, job: Job, heartbeat: Heartbeat
    ) -> tuple[dict[str, float], tuple[str, ...]]:
        """Score the last checkpoint, whose loss is reported, and return its first outputs."""
        run, score = TrainedRun.open(job.folder, which="last"), job.score
        assert score is not None
        options = self.task.comparison_options
        metrics = evaluate(run, "test", data=score, options=options, on_progress=heartbeat.tick)
        scores = {name: value for name, value in metrics.items() if isinstance(value, float)}
        records = list(islice(Corpus.open(score).records("test"), NUM_SAMPLES))
        return scores, tuple(self.task.generate_samples(run, records))


def _check_tokenizer(path: Path, shared_data: SharedData) -> None:
    if Tokenizer.load(path).digest != shared_data.tokenizer:
        raise UserError(
            f"{path} has changed since the comparison started; restore it, or start again with "
            "another output folder"
        )


def get_tokenizer_name(spec: Comparison) -> str:
    """Return the kind of tokenizer that all cells share, or the path of one."""
    return str(_shared_keys(spec).get("tokenizer", Recipe.model_fields["tokenizer"].default))


def _shared_keys(spec: Comparison) -> dict[str, Any]:
    """Return the recipe keys of every cell, those of a demo corpus included."""
    return (DEMO_RECIPE | spec.keys) if spec.data == DEMO else spec.keys


def _train(job: Job, heartbeat: Heartbeat) -> Outcome:
    recipe = job.recipe
    assert isinstance(recipe, Recipe)
    try:
        return train(recipe, job.folder, callback=heartbeat, until=job.pause_step)
    except UserError:
        moved = (job.folder / files.CONFIG).is_file() and not sidecar_path(
            job.folder, RESULT_SUFFIX
        ).exists()
        if not moved or files.read_config(job.folder).to_flat_dict() == recipe.to_flat_dict():
            raise
        shutil.rmtree(job.folder)  # it was started when its data were in another folder
        return train(recipe, job.folder, callback=heartbeat, until=job.pause_step)
