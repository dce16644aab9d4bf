"""Tasks on text: translation, language modelling, classification; recipes of the trainer."""

import math
import shutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from addnorm.comparison import layout as lab_files
from addnorm.comparison.cell_result import END, Finished, beside
from addnorm.comparison.grid import Cell
from addnorm.comparison.job import CellRecipe, Job, Pulse
from addnorm.comparison.outcomes import Course
from addnorm.comparison.shared_data import Ground, machine, versions
from addnorm.comparison.spec import DEMO, Comparison
from addnorm.comparison.tasks.base import SAMPLES, Question, Source, Task
from addnorm.comparison.tasks.text_data import check_corpus, corpus_of, unigram, write_score
from addnorm.core.errors import UserError
from addnorm.core.rows import read_rows
from addnorm.data.corpus import Corpus
from addnorm.data.tokenizer import Tokenizer
from addnorm.decode.evaluate import evaluate
from addnorm.decode.inference import classify, continue_text, translate
from addnorm.decode.options import Options
from addnorm.models import build
from addnorm.train import run_folder as files
from addnorm.train.recipe import Recipe, described
from addnorm.train.session import make_tokenizer
from addnorm.train.train_state import Outcome
from addnorm.train.trained_run import Run
from addnorm.train.trainer import train

SMALL: dict[str, Any] = {
    "tokenizer": "char", "dim": 64, "heads": 4, "batch_tokens": 512,
    "dropout": 0.0, "label_smoothing": 0.0, "max_length": 128,
}  # fmt: skip
"""The model and the batches on a demo corpus, where nobody says: quick on one core."""


class TextTask(Task):
    """What is learnt from a corpus, by the trainer."""

    measure: ClassVar[str]
    """The score that is told first."""
    classes: ClassVar[int | None] = None
    ignorant = "a model that knows how often each token occurs and nothing else"

    def known(self) -> list[str]:
        """Every key of a recipe."""
        return [name for name, _, _ in described()]

    def refuse(self, keys: Mapping[str, Any]) -> None:
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
        return Recipe.of(
            # Looks inside and checkpoints at each quarter of the way; keys may say otherwise.
            dict.fromkeys(("valid_every", "save_every", "monitor_every"), max(1, spec.steps // 4))
            | {"log_every": max(1, spec.steps // 200)}
            | _common(spec)
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
        build(recipe.config(vocab=1000, classes=self.classes), device="meta")

    def check(self, spec: Comparison) -> None:
        """Also what halving looks at."""
        super().check(spec)
        every = _common(spec).get("log_every", 1)
        if spec.mode == "halving" and every > max(1, spec.steps // 4):
            raise UserError(
                f"halving looks at a quarter of the {spec.steps} steps, and log_every={every} has "
                "no loss by then; wanted a smaller one"
            )

    def check_data(self, spec: Comparison) -> None:
        """A corpus with a valid part."""
        check_corpus(spec)

    def source(self, spec: Comparison, folder: Path) -> Source:
        """The corpus; a demo corpus is made."""
        corpus = corpus_of(spec, folder)
        return Source(corpus.folder, corpus.digest)

    def make_ground(self, spec: Comparison, folder: Path, source: Source) -> Ground:
        """One tokenizer for all, the records to be answered, and the unigram baseline."""
        corpus = Corpus.open(source.path, self.name)
        recipe = self.recipe(
            spec, spec.cells()[0], data=corpus.folder, tokenizer=tokenizer_of(spec)
        )
        tokenizer: Tokenizer = make_tokenizer(recipe, corpus)
        tokenizer.save(folder / lab_files.TOKENIZER)
        if spec.score:
            write_score(spec, corpus, folder / lab_files.SCORE)
        return Ground(
            data=str(corpus.folder),
            corpus=corpus.digest,
            tokenizer=tokenizer.digest,
            vocab=tokenizer.vocab,
            baseline=unigram(corpus, tokenizer, recipe),
            counts=corpus.counts,
            machine=machine(),
            versions=versions(),
        )

    def finished(self, job: Job, pulse: Pulse) -> Finished | None:
        """A run of the trainer, which goes on from its last checkpoint."""
        outcome = _train(job, pulse)
        if outcome.ending == "interrupted":
            return None
        rows = list(read_rows(job.folder / files.ROWS))
        course, done = Course.of(rows), outcome.ending == "done"
        scores, samples = self._answers(job, pulse) if done and job.score else ({}, ())
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

    def score(self, ground: Ground | None) -> str:
        """Always the same."""
        return self.measure

    def questions(self, folder: Path) -> list[Question]:
        """From the corpus of what is answered."""
        corpus = Corpus.open(folder / lab_files.SCORE, self.name)
        return [self.asked(record) for record in islice(corpus.records("test"), SAMPLES)]

    def right(self, said: str, wanted: str) -> bool:
        """Word by word."""
        return said.strip() == wanted.strip()

    def again(self, spec: Comparison, cell: Cell, config: Path) -> tuple[str, list[str]]:
        """The same cell, to the same bits."""
        command = ["addnorm", "train", self.name, "-c", str(config), "-o", "weights"]
        return "one cell, with its weights", command

    @abstractmethod
    def asked(self, record: Mapping[str, str]) -> Question:
        """What a record asks and wants."""

    @abstractmethod
    def samples(self, run: Run, records: Sequence[Mapping[str, str]]) -> list[str]:
        """Answers to records."""

    def options(self) -> Options | None:
        """How answers are found, the same for all."""
        return None

    def _answers(self, job: Job, pulse: Pulse) -> tuple[dict[str, float], tuple[str, ...]]:
        """Scores on the records that all cells answer, and the answers to the first of them.

        By the model at its end, to which the loss beside them belongs.
        """
        run, score = Run.open(job.folder, which="last"), job.score
        assert score is not None
        told = evaluate(run, "test", data=score, options=self.options(), tick=pulse.tick)
        scores = {name: value for name, value in told.items() if isinstance(value, float)}
        records = list(islice(Corpus.open(score).records("test"), SAMPLES))
        return scores, tuple(self.samples(run, records))


class Translate(TextTask):
    """A sentence into another language."""

    name, noun, pair = "translate", "translation", True
    measure = "chrf"  # BLEU is 0 on phrases of a few words

    def asked(self, record: Mapping[str, str]) -> Question:
        """A sentence and its translation."""
        return Question(record["source"], record["target"])

    def samples(self, run: Run, records: Sequence[Mapping[str, str]]) -> list[str]:
        """The first answer to each."""
        sources = (record["source"] for record in records)
        return [answers[0].text for answers in translate(run, sources, self.options())]

    def options(self) -> Options:
        """Greedy: quick."""
        return Options()


class Lm(TextTask):
    """The next token of a text."""

    name, noun, measure = "lm", "language modelling", "bits_per_character"

    def asked(self, record: Mapping[str, str]) -> Question:
        """The beginning of a text, which has no single right end."""
        return Question(prompt_of(record["text"]), "")

    def samples(self, run: Run, records: Sequence[Mapping[str, str]]) -> list[str]:
        """How it goes on."""
        prompts = [prompt_of(record["text"]) for record in records]
        return [answers[0].text for answers in continue_text(run, prompts, Options(max_new=60))]


class Classify(TextTask):
    """The label of a text."""

    name, noun, measure, classes = "classify", "classification", "accuracy", 2
    ignorant = "a model that knows how often each label occurs and nothing else"

    def asked(self, record: Mapping[str, str]) -> Question:
        """A text and its label."""
        return Question(record["text"], record["label"])

    def samples(self, run: Run, records: Sequence[Mapping[str, str]]) -> list[str]:
        """Labels with their probability."""
        labels = classify(run, (record["text"] for record in records))
        return [f"{each.label} ({each.probability:.0%})" for each in labels]

    def right(self, said: str, wanted: str) -> bool:
        """Without the probability."""
        return said.rpartition(" (")[0].strip() == wanted.strip()


def prompt_of(text: str) -> str:
    """The beginning of a text, which a language model continues."""
    return " ".join(text.split())[:40]


def tokenizer_of(spec: Comparison) -> str:
    """The kind of tokenizer that all cells share, or the path of one."""
    return str(_common(spec).get("tokenizer", Recipe.model_fields["tokenizer"].default))


def _common(spec: Comparison) -> dict[str, Any]:
    """The keys of every cell's recipe, those of a demo corpus included."""
    return (SMALL | spec.keys) if spec.data == DEMO else spec.keys


def _train(job: Job, pulse: Pulse) -> Outcome:
    recipe = job.recipe
    assert isinstance(recipe, Recipe)
    try:
        return train(recipe, job.folder, watcher=pulse, until=job.until)
    except UserError:
        moved = (job.folder / files.CONFIG).is_file() and not beside(job.folder, END).exists()
        if not moved or files.read_config(job.folder).flat() == recipe.flat():
            raise
        shutil.rmtree(job.folder)  # its data lay elsewhere, when it was begun
        return train(recipe, job.folder, watcher=pulse, until=job.until)
