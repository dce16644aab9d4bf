"""Text tasks: one class per task, registered by name.

A task defines, in one place, everything that differs between translation, language modeling,
classification and masked language modeling:

    records -> rows -> batches      columns, make_demo, encode_rows, transform_row
    batch -> model                  model_kind, model_inputs, select_targets
    model -> metrics                validation_metrics, evaluate
    model -> text                   generate_samples, and a function such as `translate_texts`
    comparison                      noun, primary_score, to_example, baseline_description

The data loader, the trainer, `addnorm evaluate`, the comparison and the command line know tasks by
this interface only.
"""

import math
import platform
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from addnorm.core.calls import Call
from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Registry
from addnorm.data.batches import BatchIterator, RowFormat
from addnorm.data.corpus import LABEL, Corpus, Record
from addnorm.data.readers.text_files import TextUnit
from addnorm.data.tokenizer import PAD, Tokenizer
from addnorm.decode.engine import InferenceEngine
from addnorm.decode.options import DecodingOptions
from addnorm.models import Model

Splits = dict[str, list[dict[str, str]]]
Masks = dict[str, Tensor | None]
ProgressCallback = Callable[[int, int], object]
"""Called with the number of records just finished and the total."""


class Score(NamedTuple):
    """A metric of a task as tables and pages show it."""

    name: str
    """Key in the result of `evaluate` and in `result.json`."""
    label: str
    """Name in tables and charts."""
    note: str
    """What it measures and which direction is better, in a sentence."""
    digits: int = 3
    """Digits after the decimal point."""


class Example(NamedTuple):
    """A held-out record as a comparison shows it; `target` is empty where any output is fine."""

    input: str
    target: str


@dataclass(frozen=True)
class LossMeans:
    """Sums over predictions, and their means."""

    nll: float
    """Negative log-likelihood in nats, without label smoothing."""
    correct: float
    """Predictions whose most likely class is the target."""
    count: float
    """Number of predictions."""

    @property
    def loss(self) -> float:
        """Mean negative log-likelihood; NaN without predictions."""
        return self.nll / self.count if self.count else math.nan

    @property
    def accuracy(self) -> float:
        """Fraction of correct predictions; NaN without predictions."""
        return self.correct / self.count if self.count else math.nan


class RunProtocol(Protocol):
    """A trained run as tasks use it; `addnorm.train.TrainedRun` implements it."""

    @property
    def task(self) -> str:
        """Name of the task."""

    @property
    def model(self) -> Model | InferenceEngine:
        """The model in eval mode, or an exported one."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the model was trained with."""

    @property
    def labels(self) -> Sequence[str]:
        """Classes in the order of their indices; empty without a label column."""

    @property
    def recipe(self) -> Any:
        """The recipe; tasks read `data`, `max_length`, `batch_tokens` and `task_options`."""


class TextTask(RowFormat):
    """Definition of a text task.

    Keyword arguments of a subclass' constructor are recipe keys of the task, such as `mask_rate` of
    `mlm`; the docstring's symbol lines describe them.
    """

    name: ClassVar[str]
    """Registry name; `addnorm train NAME`."""
    title: ClassVar[str]
    """Title of a report page."""
    noun: ClassVar[str]
    """The task as a noun inside a sentence."""
    command: ClassVar[str]
    """Command that applies a run to lines of text."""

    columns: ClassVar[tuple[str, ...]]
    """Columns of a record; the first one decides the split of a record."""
    text_unit: ClassVar[TextUnit] = "line"
    """Part of a text file that is one text, unless an option of `addnorm data` says otherwise."""
    compatible_corpora: ClassVar[tuple[str, ...]] = ()
    """Other tasks whose corpora it reads."""
    demo_source: ClassVar[str]
    """Origin of the demo corpus, as stored in its card."""
    special_tokens: ClassVar[tuple[str, ...]] = ()
    """Special tokens that its tokenizer has beside those of every tokenizer."""

    model_kind: ClassVar[str]
    """Kind of the model, as in `addnorm.build(kind=...)`."""
    attention_stacks: ClassVar[tuple[str, ...]]
    """Names of the attention maps that its model has."""
    is_encoder_decoder: ClassVar[bool] = False
    label_smoothing: ClassVar[float] = 0.0
    """Default of the recipe key."""

    primary_score: ClassVar[Score]
    """Metric of `evaluate`'s result that a comparison shows first."""
    baseline_description: ClassVar[str] = (
        "a model that knows how often each token occurs and nothing else"
    )
    """Predictor whose loss is the baseline of a comparison."""
    evaluation_options: ClassVar[DecodingOptions | None] = None
    """Default decoding options of `evaluate`; None if it decodes nothing."""
    comparison_options: ClassVar[DecodingOptions | None] = None
    """Decoding options of `evaluate` inside a comparison."""

    # Data

    @abstractmethod
    def make_records(self, seed: int, languages: Sequence[str]) -> tuple[Splits, dict[str, Any]]:
        """Return the splits of the demo corpus and facts for its card."""

    def make_demo(
        self, *, seed: int = 0, languages: Sequence[str] = ("en", "de")
    ) -> tuple[Splits, dict[str, Any]]:
        """Return the demo corpus, generated from installed packages without any download.

        The records depend on the seed and on the versions of Python and babel.

        Args:
            seed: seed of the selection
            languages: two locales of babel, for translation only

        Returns:
            Records of train, valid and test, and facts for the card.
        """
        splits, facts = self.make_records(seed, languages)
        about = {"source": self.demo_source, "seed": seed, "python": platform.python_version()}
        return splits, about | facts

    def make_comparison_demo(self) -> tuple[Splits, dict[str, Any]]:
        """Return the demo corpus of comparisons, as `make_demo` does."""
        return self.make_demo()

    def open_corpus(self, folder: str | Path) -> Corpus:
        """Open a corpus and check that the task can read it."""
        return Corpus.open(folder, (self.name, *self.compatible_corpora))

    def check_corpus(self, corpus: Corpus) -> None:
        """Raise UserError for a corpus that the task cannot be trained on."""
        missing = [column for column in self.columns if column not in corpus.columns]
        if missing:
            raise UserError(
                f"{corpus.folder}: expected records with {' and '.join(self.columns)}, got "
                f"{' and '.join(corpus.columns)}"
            )

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise UserError for a tokenizer without the special tokens of the task."""
        for token in self.special_tokens:
            if token not in tokenizer.specials:
                raise UserError(
                    f"tokenizer: expected one with the special token {token} for task "
                    f"{self.name!r}; train one with tokenizer=bpe"
                )

    def make_batches(self, corpus: Corpus, tokenizer: Tokenizer, **options: Any) -> BatchIterator:
        """Return the batches of a split; options as of `BatchIterator`."""
        return BatchIterator(corpus, tokenizer, self, **options)

    # Objective

    @property
    def predicts_label(self) -> bool:
        """Whether a record has a label, which the model predicts."""
        return LABEL in self.columns

    def num_classes(self, corpus: Corpus) -> int | None:
        """Return the number of labels; None for a task that predicts tokens."""
        return len(corpus.labels) if self.predicts_label else None

    def model_inputs(self, inputs: Tensor, targets: Tensor) -> tuple[tuple[Tensor, ...], Masks]:
        """Return the positional and keyword arguments of the model.

        Args:
            inputs: (B, S) as in `Batch`
            targets: (B, L) as in `Batch`
        """
        return (inputs,), {"mask": make_token_mask(inputs)}

    # Metrics

    def validation_metrics(self, means: LossMeans) -> dict[str, float]:
        """Return the metrics that the trainer logs beside the validation loss."""
        return {"perplexity": math.exp(min(means.loss, 700.0))}

    @abstractmethod
    def evaluate(
        self,
        run: RunProtocol,
        corpus: Corpus,
        split: str,
        *,
        options: DecodingOptions | None,
        on_progress: ProgressCallback,
    ) -> dict[str, Any]:
        """Return the metrics of a run on a split; see `addnorm.tasks.evaluate`."""

    # Comparison

    @abstractmethod
    def to_example(self, record: Record) -> Example:
        """Return a record as the report of a comparison shows it."""

    @abstractmethod
    def generate_samples(self, run: RunProtocol, records: Sequence[Record]) -> list[str]:
        """Return the run's output for each record."""

    def is_correct(self, output: str, target: str) -> bool:
        """Return whether a sample equals the target of its example."""
        return output.strip() == target.strip()


class TaskRegistry(Registry[TextTask]):
    """Registry of text tasks, which know their name and title."""

    def register(self, card: Card) -> Callable[[type[TextTask]], type[TextTask]]:
        """Return a class decorator that registers a task under the name of its card."""
        add_member = super().register(card)

        def add(task: type[TextTask]) -> type[TextTask]:
            task.name, task.title = card.name, card.title
            return add_member(task)

        return add


registry = TaskRegistry("task")
registry.base = TextTask
register = registry.register


def get_task(name: str, options: Mapping[str, Any] | None = None) -> TextTask:
    """Return the task of a name.

    Args:
        name: registry name
        options: recipe keys of the task; defaults for those left out

    Raises:
        UserError: unknown name or option, or an invalid value
    """
    registry.card(name)  # an unknown name gets a suggestion
    return registry.make(Call(name, dict(options or {})))


def find_task(columns: Collection[str]) -> str:
    """Return the name of the first task whose records have these columns.

    >>> from addnorm.tasks import find_task
    >>> find_task(("source", "target")), find_task(("text",))
    ('translate', 'lm')
    """
    for name in registry:
        if set(registry.member(name).columns) == set(columns):
            return name
    known = dict.fromkeys(registry.member(name).columns for name in registry)
    raise UserError(
        f"columns: expected {' or '.join(' and '.join(each) for each in known)}, got "
        f"{' and '.join(columns) or 'none'}"
    )


def get_run_task(run: RunProtocol) -> TextTask:
    """Return the task of a run, with the options that it was trained with."""
    return get_task(run.task, run.recipe.task_options)


def make_token_mask(ids: Tensor) -> Tensor | None:
    """Return the mask of a batch, True at tokens; None without padding.

    Whether there is padding is read from the CPU only; on other devices the mask is returned.
    """
    mask = ids != PAD
    if torch.compiler.is_compiling() or ids.device.type != "cpu":
        return mask
    return None if bool(mask.all()) else mask
