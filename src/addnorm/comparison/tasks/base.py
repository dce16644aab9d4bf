"""What every task of a comparison is: its data, its recipe, its training, its score."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Arm, Cell
from addnorm.comparison.job import CellRecipe, Heartbeat, Job
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import Comparison
from addnorm.core.errors import UserError
from addnorm.tasks import Example

NUM_SAMPLES = 6
"""Records whose answers are kept, word by word."""


class DataSource(NamedTuple):
    """Where the data of a comparison are, and what tells them from others."""

    path: Path
    digest: str


class Task(ABC):
    """What the cells of a comparison learn. Lab and page know tasks by this alone."""

    name: ClassVar[str]
    noun: ClassVar[str]
    """What is done, in a title."""
    unit: ClassVar[str] = "tokens"
    """What speed counts."""
    loss_unit: ClassVar[str] = "nats"
    """What losses are counted in; nothing where that has no name."""
    baseline_description: ClassVar[str]
    """The model that the baseline is the loss of, in words."""
    is_encoder_decoder: ClassVar[bool] = False
    """Whether there is an encoder and a decoder."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Keys of the spec where nobody says."""

    @abstractmethod
    def recipe_keys(self) -> list[str]:
        """Keys of a recipe that a spec may set for all cells."""

    @abstractmethod
    def validate_keys(self, keys: Mapping[str, Any]) -> None:
        """Refuse known keys whose values would not be fair, or make no sense."""

    @abstractmethod
    def recipe(
        self, spec: Comparison, cell: Cell, *, data: Path | str, tokenizer: Path | str
    ) -> CellRecipe:
        """What a cell trains, on the common data (with the common tokenizer, if there is one)."""

    @abstractmethod
    def build(self, recipe: CellRecipe) -> None:
        """Build the model of a recipe once, without its data, to see that it can be."""

    @abstractmethod
    def check_data(self, spec: Comparison) -> None:
        """Refuse data that cannot be compared on, before any folder is made."""

    @abstractmethod
    def prepare_source(self, spec: Comparison, folder: Path) -> DataSource:
        """The data; made in the folder where there are none."""

    @abstractmethod
    def prepare_shared_data(self, spec: Comparison, folder: Path, source: DataSource) -> SharedData:
        """What all cells share, made and measured: the baseline above all."""

    @abstractmethod
    def train_and_score(self, job: Job, heartbeat: Heartbeat) -> CellResult | None:
        """Train a cell, or go on with it, and score it; None if it was interrupted or paused."""

    @abstractmethod
    def score(self, shared_data: SharedData | None) -> str:
        """The name of the score that is told first."""

    @abstractmethod
    def read_examples(self, folder: Path) -> list[Example]:
        """The first records that all cells answer. folder: that of a comparison."""

    @abstractmethod
    def is_correct(self, answer: str, expected: str) -> bool:
        """Whether a sample answer is the wanted one."""

    @abstractmethod
    def reproduce_command(
        self, spec: Comparison, cell: Cell, config: Path
    ) -> tuple[str, list[str]]:
        """How a model like that of a cell is trained: in words, and the command."""

    def check(self, spec: Comparison) -> None:
        """Refuse what makes no sense before anything runs: each arm is built once at each depth."""
        seen: set[tuple[Arm, int]] = set()
        for cell in (cell for grid in spec.grids for cell in grid.cells([0])):
            recipe = self.recipe(spec, cell, data="data", tokenizer="tokenizer.json")
            if (cell.arm, cell.depth) not in seen:
                seen.add((cell.arm, cell.depth))
                self.build(recipe)

    def prepare(self, spec: Comparison, folder: Path) -> SharedData:
        """The ground of a comparison: as it was made before, or made now."""
        source, before = self.prepare_source(spec, folder), SharedData.read(folder)
        if before is None:
            before = self.prepare_shared_data(spec, folder, source)
            before.save(folder)
        if before.corpus != source.digest:
            raise UserError(
                f"{source.path} was changed since this comparison began; put the old "
                "one back, or begin anew with another -o"
            )
        return replace(
            before, data=str(self.data_path(folder, source))
        )  # the folder may have moved

    def data_path(self, folder: Path, source: DataSource) -> Path:
        """Where cells find their data."""
        return source.path
