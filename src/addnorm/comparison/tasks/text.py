"""Tasks on text: translation, language modelling, classification; recipes of the trainer."""

import math
import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from addnorm.comparison import layout
from addnorm.comparison.cell_result import RESULT_SUFFIX, CellResult, sidecar_path
from addnorm.comparison.grid import Cell
from addnorm.comparison.job import CellRecipe, Heartbeat, Job
from addnorm.comparison.outcomes import LossSummary
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import DEMO, Comparison
from addnorm.comparison.tasks.base import NUM_SAMPLES, DataSource, Example, Task
from addnorm.comparison.tasks.text_data import (
    check_corpus,
    open_corpus,
    unigram_loss,
    write_scored_records,
)
from addnorm.core.errors import UserError
from addnorm.core.rows import read_rows
from addnorm.data.corpus import Corpus
from addnorm.data.tokenizer import Tokenizer
from addnorm.decode.evaluate import evaluate
from addnorm.decode.inference import classify, generate_texts, translate
from addnorm.decode.options import DecodingOptions
from addnorm.models import build
from addnorm.train import run_folder as files
from addnorm.train.environment import collect_versions, describe_machine
from addnorm.train.recipe import Recipe, recipe_keys
from addnorm.train.session import make_tokenizer
from addnorm.train.train_state import Outcome
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train

DEMO_RECIPE: dict[str, Any] = {
    "tokenizer": "char", "dim": 64, "heads": 4, "batch_tokens": 512,
    "dropout": 0.0, "label_smoothing": 0.0, "max_length": 128,
}  # fmt: skip
"""The model and the batches on a demo corpus, where nobody says: quick on one core."""


class TextTask(Task):
    """What is learnt from a corpus, by the trainer."""

    primary_score: ClassVar[str]
    """The score that is told first."""
    classes: ClassVar[int | None] = None
    baseline_description = "a model that knows how often each token occurs and nothing else"

    def recipe_keys(self) -> list[str]:
        """Every key of a recipe."""
        return [name for name, _, _ in recipe_keys()]

    def validate_keys(self, keys: Mapping[str, Any]) -> None:
        """What would give some cells other data, other wirings or fewer steps than others."""
        if strangers := [name for name in keys if name in ("encoder_wiring", "encoder_norm")]:
            raise UserError(
                f"an arm has one wiring and one norm for all stacks; leave {strangers[0]} out"
            )
        if keys.get("on_spike", "log") != "log":
            raise UserError(
                f"on_spike={keys['on_spike']} would give some cells other data than others, wanted "
                "the same for all; leave it out"
            )
        if keys.get("valid_every") == 0:
            raise UserError(
                "arms are compared by validations, and valid_every=0 has none; leave it out"
            )
        if keys.get("patience"):
            raise UserError(
                f"patience={keys['patience']} would give some cells fewer steps than others, "
                "wanted the same budget for all; leave it out"
            )

    def recipe(
        self, spec: Comparison, cell: Cell, *, data: Path | str, tokenizer: Path | str
    ) -> Recipe:
        """The recipe of the trainer."""
        return Recipe.from_dict(
            # Looks inside and checkpoints at each quarter of the way; keys may say otherwise.
            dict.fromkeys(("valid_every", "save_every", "monitor_every"), max(1, spec.steps // 4))
            | {"log_every": max(1, spec.steps // 200)}
            | _shared_keys(spec)
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
        """Without weights."""
        assert isinstance(recipe, Recipe)
        build(recipe.build_config(vocab=1000, classes=self.classes), device="meta")

    def check(self, spec: Comparison) -> None:
        """Also what halving looks at."""
        super().check(spec)
        every = _shared_keys(spec).get("log_every", 1)
        if spec.mode == "halving" and every > max(1, spec.steps // 4):
            raise UserError(
                f"halving looks at a quarter of the {spec.steps} steps, and log_every={every} has "
                "no loss by then; wanted a smaller one"
            )

    def check_data(self, spec: Comparison) -> None:
        """A corpus with a valid part."""
        check_corpus(spec)

    def prepare_source(self, spec: Comparison, folder: Path) -> DataSource:
        """The corpus; a demo corpus is made."""
        corpus = open_corpus(spec, folder)
        return DataSource(corpus.folder, corpus.digest)

    def prepare_shared_data(self, spec: Comparison, folder: Path, source: DataSource) -> SharedData:
        """One tokenizer for all, the records to be answered, and the unigram baseline."""
        corpus = Corpus.open(source.path, self.name)
        recipe = self.recipe(
            spec, spec.cells()[0], data=corpus.folder, tokenizer=tokenizer_name(spec)
        )
        tokenizer: Tokenizer = make_tokenizer(recipe, corpus)
        tokenizer.save(folder / layout.TOKENIZER)
        if spec.score:
            write_scored_records(spec, corpus, folder / layout.SCORE)
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

    def train_and_score(self, job: Job, heartbeat: Heartbeat) -> CellResult | None:
        """A run of the trainer, which goes on from its last checkpoint."""
        outcome = _train(job, heartbeat)
        if outcome.ending == "interrupted":
            return None
        rows = list(read_rows(job.folder / files.ROWS))
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

    def score(self, shared_data: SharedData | None) -> str:
        """Always the same."""
        return self.primary_score

    def read_examples(self, folder: Path) -> list[Example]:
        """From the corpus of what is answered."""
        corpus = Corpus.open(folder / layout.SCORE, self.name)
        return [self.to_example(record) for record in islice(corpus.records("test"), NUM_SAMPLES)]

    def is_correct(self, answer: str, expected: str) -> bool:
        """Word by word."""
        return answer.strip() == expected.strip()

    def reproduce_command(
        self, spec: Comparison, cell: Cell, config: Path
    ) -> tuple[str, list[str]]:
        """The same cell, to the same bits."""
        command = ["addnorm", "train", self.name, "-c", str(config), "-o", "weights"]
        return "one cell, with its weights", command

    @abstractmethod
    def to_example(self, record: Mapping[str, str]) -> Example:
        """What a record asks and wants."""

    @abstractmethod
    def generate_samples(self, run: TrainedRun, records: Sequence[Mapping[str, str]]) -> list[str]:
        """Answers to records."""

    def options(self) -> DecodingOptions | None:
        """How answers are found, the same for all."""
        return None

    def _score_and_sample(
        self, job: Job, heartbeat: Heartbeat
    ) -> tuple[dict[str, float], tuple[str, ...]]:
        """Scores on the records that all cells answer, and the answers to the first of them.

        By the model at its end, to which the loss beside them belongs.
        """
        run, score = TrainedRun.open(job.folder, which="last"), job.score
        assert score is not None
        told = evaluate(run, "test", data=score, options=self.options(), on_progress=heartbeat.tick)
        scores = {name: value for name, value in told.items() if isinstance(value, float)}
        records = list(islice(Corpus.open(score).records("test"), NUM_SAMPLES))
        return scores, tuple(self.generate_samples(run, records))


class Translate(TextTask):
    """A sentence into another language."""

    name, noun, is_encoder_decoder = "translate", "translation", True
    primary_score = "chrf"  # BLEU is 0 on phrases of a few words

    def to_example(self, record: Mapping[str, str]) -> Example:
        """A sentence and its translation."""
        return Example(record["source"], record["target"])

    def generate_samples(self, run: TrainedRun, records: Sequence[Mapping[str, str]]) -> list[str]:
        """The first answer to each."""
        sources = (record["source"] for record in records)
        return [answers[0].text for answers in translate(run, sources, self.options())]

    def options(self) -> DecodingOptions:
        """Greedy: quick."""
        return DecodingOptions()


class Lm(TextTask):
    """The next token of a text."""

    name, noun, primary_score = "lm", "language modelling", "bits_per_character"

    def to_example(self, record: Mapping[str, str]) -> Example:
        """The beginning of a text, which has no single right end."""
        return Example(make_prompt(record["text"]), "")

    def generate_samples(self, run: TrainedRun, records: Sequence[Mapping[str, str]]) -> list[str]:
        """How it goes on."""
        prompts = [make_prompt(record["text"]) for record in records]
        return [
            answers[0].text for answers in generate_texts(run, prompts, DecodingOptions(max_new=60))
        ]


class Classify(TextTask):
    """The label of a text."""

    name, noun, primary_score, classes = "classify", "classification", "accuracy", 2
    baseline_description = "a model that knows how often each label occurs and nothing else"

    def to_example(self, record: Mapping[str, str]) -> Example:
        """A text and its label."""
        return Example(record["text"], record["label"])

    def generate_samples(self, run: TrainedRun, records: Sequence[Mapping[str, str]]) -> list[str]:
        """Labels with their probability."""
        labels = classify(run, (record["text"] for record in records))
        return [f"{each.label} ({each.probability:.0%})" for each in labels]

    def is_correct(self, answer: str, expected: str) -> bool:
        """Without the probability."""
        return answer.rpartition(" (")[0].strip() == expected.strip()


def make_prompt(text: str) -> str:
    """The beginning of a text, which a language model continues."""
    return " ".join(text.split())[:40]


def tokenizer_name(spec: Comparison) -> str:
    """The kind of tokenizer that all cells share, or the path of one."""
    return str(_shared_keys(spec).get("tokenizer", Recipe.model_fields["tokenizer"].default))


def _shared_keys(spec: Comparison) -> dict[str, Any]:
    """The keys of every cell's recipe, those of a demo corpus included."""
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
        shutil.rmtree(job.folder)  # its data lay elsewhere, when it was begun
        return train(recipe, job.folder, callback=heartbeat, until=job.pause_step)
