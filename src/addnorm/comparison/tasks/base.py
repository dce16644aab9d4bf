"""Interface of the tasks that a comparison can run on: data, recipe, training and score."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from addnorm.comparison.cell_job import CellRecipe, Heartbeat, Job
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.folder_layout import CELLS
from addnorm.comparison.grid import Arm, Cell
from addnorm.comparison.outcomes import VALIDATION_LOSS, Objective
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks.used_plugins import find_changed_plugins, find_used_plugins
from addnorm.core.errors import UserError
from addnorm.tasks import Example, Score

NUM_SAMPLES = 6
"""Number of held-out examples whose outputs are stored and shown in the report."""


class DataSource(NamedTuple):
    """Location and digest of the data of a comparison."""

    path: Path
    digest: str


class Task(ABC):
    """A task of a comparison; the engine and the report use tasks through this interface only."""

    name: ClassVar[str]
    noun: ClassVar[str]
    """Task name in titles."""
    unit: ClassVar[str] = "tokens"
    """Unit of throughput."""
    loss_unit: ClassVar[str] = "nats"
    """Unit of the loss; empty if it has none."""
    baseline_description: ClassVar[str]
    """The model whose loss is the baseline, as a noun phrase."""
    is_encoder_decoder: ClassVar[bool] = False
    """Whether the model has an encoder and a decoder."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of spec fields and axes, where they differ from those of `Comparison`."""
    objective: ClassVar[Objective] = VALIDATION_LOSS
    """What cells are judged by."""
    shared_keys: ClassVar[tuple[str, ...]] = ()
    """Recipe keys that cannot be an axis, because they determine what all cells share."""
    has_free_names: ClassVar[bool] = False
    """Whether keys, axes, wirings and norms may have any name; the task decides what they mean."""
    is_drawn: ClassVar[bool] = True
    """Whether arms are arrangements of ours, which the page draws."""

    @abstractmethod
    def list_recipe_keys(self) -> list[str]:
        """Return the recipe keys that a spec may set for all cells."""

    @abstractmethod
    def validate_keys(self, keys: Mapping[str, Any]) -> None:
        """Reject values of known keys that are invalid or would treat cells unequally."""

    @abstractmethod
    def recipe(
        self, spec: Comparison, cell: Cell, *, data: Path | str, tokenizer: Path | str
    ) -> CellRecipe:
        """Return the recipe of a cell.

        Args:
            spec: the comparison
            cell: a cell of it
            data: folder of the data that all cells share
            tokenizer: file of the tokenizer that all cells share; unused for tables
        """

    @abstractmethod
    def build(self, recipe: CellRecipe) -> None:
        """Build the model of a recipe without data, to verify that it can be built."""

    @abstractmethod
    def check_data(self, spec: Comparison) -> None:
        """Reject unusable data before any folder is created."""

    @abstractmethod
    def prepare_source(self, spec: Comparison, folder: Path) -> DataSource:
        """Return the data of the spec, creating a demo corpus in `folder` if needed."""

    @abstractmethod
    def prepare_shared_data(self, spec: Comparison, folder: Path, source: DataSource) -> SharedData:
        """Create what all cells share: tokenizer, held-out examples, baseline."""

    @abstractmethod
    def train_and_score(self, job: Job, heartbeat: Heartbeat) -> CellResult | None:
        """Train or resume a cell and score it; return None if it was interrupted or paused."""

    @abstractmethod
    def score(self, shared_data: SharedData | None) -> Score:
        """Return the primary score."""

    @abstractmethod
    def read_examples(self, folder: Path) -> list[Example]:
        """Return the first held-out examples, from the folder of the comparison."""

    @abstractmethod
    def is_correct(self, answer: str, expected: str) -> bool:
        """Return whether a sample output equals the expected one."""

    @abstractmethod
    def reproduce_command(
        self, spec: Comparison, cell: Cell, config: Path
    ) -> tuple[str, list[str]]:
        """Return a description and the command that trains a model like that of a cell.

        config: the `config.yaml` of the cell.
        """

    def check(self, spec: Comparison) -> None:
        """Reject an invalid spec: build the recipe of every cell, and each arm at each depth."""
        built: set[tuple[Arm, int]] = set()
        for cell in (cell for grid in spec.grids for cell in grid.cells([0])):
            recipe = self.recipe(spec, cell, data="data", tokenizer="tokenizer.json")
            if (cell.arm, cell.depth) not in built:
                built.add((cell.arm, cell.depth))
                self.build(recipe)

    def prepare(self, spec: Comparison, folder: Path) -> SharedData:
        """Prepare the data that all cells share, or read them if they are prepared already."""
        source, shared_data = self.prepare_source(spec, folder), SharedData.read(folder)
        plugins = find_used_plugins(spec)
        if shared_data is not None:
            changed = find_changed_plugins(plugins, shared_data.plugins)
            if changed and not _discard_crashed_cells(spec, folder):
                raise UserError(
                    f"plugin {changed[0]} has changed since the comparison started; restore it, or "
                    "start again with another output folder"
                )
            shared_data = None if changed else shared_data
        if shared_data is None:
            shared_data = self.prepare_shared_data(spec, folder, source)
            versions = {plugin.name: plugin.version for plugin in plugins if plugin.version}
            shared_data = replace(
                shared_data,
                versions=shared_data.versions | versions,
                plugins={plugin.name: plugin.digest for plugin in plugins},
            )
            shared_data.save(folder)
        if shared_data.corpus != source.digest:
            raise UserError(
                f"{source.path} has changed since the comparison started; restore it, or start "
                "again with another output folder"
            )
        self.check_shared_data(folder, shared_data)
        # The folder may have been moved since the facts were written.
        return replace(shared_data, data=str(self.data_path(folder, source)))

    @abstractmethod
    def check_shared_data(self, folder: Path, shared_data: SharedData) -> None:
        """Raise `UserError` if files in the folder of a comparison have changed.

        The digest of the data is checked by `prepare`, and when a cell starts.
        """

    def data_path(self, folder: Path, source: DataSource) -> Path:
        """Return the folder that cells read their data from."""
        return source.path


class DistributedTask(Task):
    """A task whose cells several processes can train together, started by `torchrun`."""

    @abstractmethod
    def join_training(self, job: Job) -> None:
        """Train a cell together with its main process, as another process of `torchrun`."""


def _discard_crashed_cells(spec: Comparison, folder: Path) -> bool:
    """Remove the cells if all that started have crashed; return False if one has not.

    After such a start the author repairs the plugin, and there is no result to mix with.
    """
    cells = folder / CELLS
    for cell in spec.cells():
        result = CellResult.read(cells / cell.name)
        crashed = result is not None and result.ending == "crashed"
        if not crashed and (result is not None or (cells / cell.name).exists()):
            return False
    shutil.rmtree(cells, ignore_errors=True)
    return True
