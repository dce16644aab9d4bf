"""The task of a table: a column from the others, by the models of `addnorm.tabular`."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from addnorm.comparison import layout as files
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Cell
from addnorm.comparison.job import CellRecipe, Heartbeat, Job
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import DEMO, Comparison
from addnorm.comparison.tasks.base import DataSource, Example, Task
from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write
from addnorm.core.validation import format_validation_error
from addnorm.train.environment import collect_versions, describe_machine
from addnorm.train.schedules.base import registry as schedules

TASK_KEYS = ("target", "kind", "missing", "noise")
"""Keys that are no parameters of an estimator."""
Fractions = tuple[Annotated[float, Field(gt=0, lt=1)], ...]


class TableRecipe(BaseModel):
    """All that decides a cell on a table, in plain data."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: Literal["table"] = "table"
    data: str
    """Folder of the parts of the table."""
    target: str
    """The column that is predicted."""
    kind: Literal["auto", "classify", "regress"] = "auto"
    """What the target is; auto goes by its values, as `addnorm fit` does."""
    missing: Fractions = ()
    """Shares of the cells of held-out rows that are taken away for further scores."""
    noise: Fractions = ()
    """Shares that are replaced by cells of other rows for further scores."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Parameters of the estimator, the same for all cells: model, dim, dropout, batch_size, ..."""
    wiring: str
    norm: str
    depth: int
    lr: float
    schedule: str
    seed: int
    steps: int
    """Updates; rounded up to whole passes over the rows."""

    def to_flat_dict(self) -> dict[str, Any]:
        """Every key with its value, parameters beside the others."""
        plain = self.model_dump(mode="json")
        params: dict[str, Any] = plain.pop("params")
        return plain | params

    def to_yaml(self) -> str:
        """As YAML."""
        return yaml.safe_dump(self.to_flat_dict(), sort_keys=False, allow_unicode=True)

    def save(self, path: Path) -> None:
        """Write `config.yaml`."""
        with atomic_write(path) as name:
            name.write_text(self.to_yaml(), encoding="utf-8")


class TableTask(Task):
    """A column of a table from the others.

    Rows are parted once, for all cells: 70 % to train on, 15 % to validate, 15 % to score. A cell's
    loss is that of its best pass over the rows, as the estimator keeps it.
    """

    name, noun, unit, loss_unit = "table", "a table", "rows", ""
    baseline_description = "a model that knows how the target is spread and nothing else"
    defaults: ClassVar[Mapping[str, Any]] = {"depth": 2, "steps": 400, "score": 5000}

    def recipe_keys(self) -> list[str]:
        """Its own, and those of the estimator."""
        return [*TASK_KEYS, *_import_table_training().PARAMETERS]

    def validate_keys(self, keys: Mapping[str, Any]) -> None:
        """A table without a target."""
        if not isinstance(keys.get("target"), str) or not keys["target"]:
            raise UserError("which column is to be predicted? say --target COLUMN")

    def recipe(
        self, spec: Comparison, cell: Cell, *, data: Path | str, tokenizer: Path | str
    ) -> TableRecipe:
        """The parameters of an estimator; a table has no tokenizer."""
        schedule = cell.schedule(spec.schedule)
        schedules.make(schedule).check(spec.steps)
        own = {name: value for name, value in spec.keys.items() if name in TASK_KEYS}
        for name in ("missing", "noise"):
            if name in own:
                own[name] = _to_list(own[name])
        try:
            return TableRecipe(
                data=str(data),
                params={name: value for name, value in spec.keys.items() if name not in TASK_KEYS},
                wiring=cell.arm.wiring,
                norm=cell.arm.norm,
                depth=cell.depth,
                lr=cell.lr,
                schedule=schedule,
                seed=cell.seed,
                steps=spec.steps,
                **own,
            )
        except ValidationError as problem:
            raise UserError(
                format_validation_error(problem, list(TableRecipe.model_fields))
            ) from None

    def build(self, recipe: CellRecipe) -> None:
        """On a table of two rows."""
        assert isinstance(recipe, TableRecipe)
        _import_table_training().try_model(recipe)

    def check_data(self, spec: Comparison) -> None:
        """A file with the target among its columns, rows enough, and two classes at least."""
        if spec.data == DEMO:
            raise UserError(
                "which table? say --task table:FILE with a CSV, TSV, Parquet or Arrow file"
            )
        _import_table_training().Parted.of(spec)

    def prepare_source(self, spec: Comparison, folder: Path) -> DataSource:
        """The file."""
        try:
            digest = hashlib.sha256(Path(spec.data).read_bytes()).hexdigest()[:16]
        except OSError as problem:
            raise UserError(f"no table at {spec.data} ({problem.strerror})") from None
        return DataSource(Path(spec.data), digest)

    def data_path(self, folder: Path, source: DataSource) -> Path:
        """The parts, in the folder of the comparison."""
        return folder / files.DATA

    def prepare_shared_data(self, spec: Comparison, folder: Path, source: DataSource) -> SharedData:
        """The parts of the table, and the baseline."""
        parted = _import_table_training().Parted.of(spec)
        place = self.data_path(folder, source)
        parted.save(place, folder / files.SCORE if spec.score else None, most=spec.score)
        return SharedData(
            data=str(place),
            corpus=source.digest,
            tokenizer="",
            vocab=0,
            baseline=parted.baseline(spec.keys.get("target_scaling", "auto")),
            counts=parted.counts,
            machine=describe_machine(),
            versions=collect_versions(),
            about=parted.about(),
        )

    def train_and_score(self, job: Job, heartbeat: Heartbeat) -> CellResult | None:
        """A fit; one that was interrupted begins anew, and ends with the same bits."""
        assert isinstance(job.recipe, TableRecipe)
        end: CellResult | None = _import_table_training().fit_cell(job, job.recipe, heartbeat)
        return end

    def score(self, shared_data: SharedData | None) -> str:
        """Accuracy of classes, r2 of numbers."""
        return (
            "r2"
            if shared_data is not None and shared_data.about.get("kind") == "regress"
            else "accuracy"
        )

    def read_examples(self, folder: Path) -> list[Example]:
        """Rows in words."""
        found: list[Example] = _import_table_training().questions(folder / files.SCORE)
        return found

    def is_correct(self, answer: str, expected: str) -> bool:
        """Of labels, without the probability; a number is never quite right."""
        return answer.rpartition(" (")[0].strip() == expected.strip()

    def reproduce_command(
        self, spec: Comparison, cell: Cell, config: Path
    ) -> tuple[str, list[str]]:
        """An estimator with the parameters of a cell; its rows are parted otherwise."""
        recipe = self.recipe(spec, cell, data="", tokenizer="")
        chosen = {
            name: getattr(recipe, name) for name in _import_table_training().AXES
        } | recipe.params
        pairs = [f"{name}={value}" for name, value in chosen.items()]
        command = ["addnorm", "fit", spec.data, "--target", recipe.target, *pairs, "-o", "fit"]
        return "an estimator like the best cell", command


def _import_table_training() -> ModuleType:
    """The part that needs scikit-learn, imported only where there is a table."""
    try:
        from addnorm.comparison.tasks import table_training
    except ImportError as problem:
        raise UserError(
            f"tables need the package {problem.name}; install addnorm[tabular]"
        ) from None
    return table_training


def _to_list(value: Any) -> Any:
    """A single share, or several between commas, as a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return value if isinstance(value, list | tuple) else [value]
