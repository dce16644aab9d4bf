"""What every task of a comparison is: its data, its recipe, its training, its score."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from addnorm.comparison.cell_result import Finished
from addnorm.comparison.grid import Arm, Cell
from addnorm.comparison.job import CellRecipe, Job, Pulse
from addnorm.comparison.shared_data import Ground
from addnorm.comparison.spec import Comparison
from addnorm.core.errors import UserError

SAMPLES = 6
"""Records whose answers are kept, word by word."""


class Source(NamedTuple):
    """Where the data of a comparison are, and what tells them from others."""

    path: Path
    digest: str


class Question(NamedTuple):
    """A held-out record: what was asked, and what was wanted; nothing where all answers do."""

    asked: str
    wanted: str


class Task(ABC):
    """What the cells of a comparison learn. Lab and page know tasks by this alone."""

    name: ClassVar[str]
    noun: ClassVar[str]
    """What is done, in a title."""
    unit: ClassVar[str] = "tokens"
    """What speed counts."""
    loss: ClassVar[str] = "nats"
    """What losses are counted in; nothing where that has no name."""
    ignorant: ClassVar[str]
    """The model that the baseline is the loss of, in words."""
    pair: ClassVar[bool] = False
    """Whether there is an encoder and a decoder."""
    usual: ClassVar[Mapping[str, Any]] = {}
    """Keys of the spec where nobody says."""

    @abstractmethod
    def known(self) -> list[str]:
        """Keys of a recipe that a spec may set for all cells."""

    @abstractmethod
    def refuse(self, keys: Mapping[str, Any]) -> None:
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
    def source(self, spec: Comparison, folder: Path) -> Source:
        """The data; made in the folder where there are none."""

    @abstractmethod
    def make_ground(self, spec: Comparison, folder: Path, source: Source) -> Ground:
        """What all cells share, made and measured: the baseline above all."""

    @abstractmethod
    def finished(self, job: Job, pulse: Pulse) -> Finished | None:
        """Train a cell, or go on with it, and score it; None if it was interrupted or paused."""

    @abstractmethod
    def score(self, ground: Ground | None) -> str:
        """The name of the score that is told first."""

    @abstractmethod
    def questions(self, folder: Path) -> list[Question]:
        """The first records that all cells answer. folder: that of a comparison."""

    @abstractmethod
    def right(self, said: str, wanted: str) -> bool:
        """Whether a sample answer is the wanted one."""

    @abstractmethod
    def again(self, spec: Comparison, cell: Cell, config: Path) -> tuple[str, list[str]]:
        """How a model like that of a cell is trained: in words, and the command."""

    def check(self, spec: Comparison) -> None:
        """Refuse what makes no sense before anything runs: each arm is built once at each depth."""
        seen: set[tuple[Arm, int]] = set()
        for cell in (cell for grid in spec.grids for cell in grid.cells([0])):
            recipe = self.recipe(spec, cell, data="data", tokenizer="tokenizer.json")
            if (cell.arm, cell.depth) not in seen:
                seen.add((cell.arm, cell.depth))
                self.build(recipe)

    def prepare(self, spec: Comparison, folder: Path) -> Ground:
        """The ground of a comparison: as it was made before, or made now."""
        source, before = self.source(spec, folder), Ground.read(folder)
        if before is None:
            before = self.make_ground(spec, folder, source)
            before.save(folder)
        if before.corpus != source.digest:
            raise UserError(
                f"{source.path} was changed since this comparison began; put the old "
                "one back, or begin anew with another -o"
            )
        return replace(before, data=str(self.place(folder, source)))  # the folder may have moved

    def place(self, folder: Path, source: Source) -> Path:
        """Where cells find their data."""
        return source.path
