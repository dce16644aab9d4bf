"""The task of a table: a column from the others, by the models of `addnorm.tabular`."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from addnorm.comparison import layout as files
from addnorm.comparison.cell_result import Finished
from addnorm.comparison.grid import Cell
from addnorm.comparison.job import CellRecipe, Job, Pulse
from addnorm.comparison.shared_data import Ground, machine, versions
from addnorm.comparison.spec import DEMO, Comparison
from addnorm.comparison.tasks.base import Question, Source, Task
from addnorm.core.errors import UserError
from addnorm.core.files import replacing
from addnorm.models.config import told
from addnorm.train.schedules.base import registry as schedules

OWN = ("target", "kind", "missing", "noise")
"""Keys that are no parameters of an estimator."""
Shares = tuple[Annotated[float, Field(gt=0, lt=1)], ...]


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
    missing: Shares = ()
    """Shares of the cells of held-out rows that are taken away for further scores."""
    noise: Shares = ()
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

    def flat(self) -> dict[str, Any]:
        """Every key with its value, parameters beside the others."""
        plain = self.model_dump(mode="json")
        params: dict[str, Any] = plain.pop("params")
        return plain | params

    def yaml(self) -> str:
        """As YAML."""
        return yaml.safe_dump(self.flat(), sort_keys=False, allow_unicode=True)

    def save(self, path: Path) -> None:
        """Write `config.yaml`."""
        with replacing(path) as name:
            name.write_text(self.yaml(), encoding="utf-8")


class TableTask(Task):
    """A column of a table from the others.

    Rows are parted once, for all cells: 70 % to train on, 15 % to validate, 15 % to score. A cell's
    loss is that of its best pass over the rows, as the estimator keeps it.
    """

    name, noun, unit, loss = "table", "a table", "rows", ""
    ignorant = "a model that knows how the target is spread and nothing else"
    usual: ClassVar[Mapping[str, Any]] = {"depth": 2, "steps": 400, "score": 5000}

    def known(self) -> list[str]:
        """Its own, and those of the estimator."""
        return [*OWN, *_fits().PARAMETERS]

    def refuse(self, keys: Mapping[str, Any]) -> None:
        """A table without a target."""
        if not isinstance(keys.get("target"), str) or not keys["target"]:
            raise UserError("which column is to be predicted? say --target COLUMN")

    def recipe(
        self, spec: Comparison, cell: Cell, *, data: Path | str, tokenizer: Path | str
    ) -> TableRecipe:
        """The parameters of an estimator; a table has no tokenizer."""
        schedule = cell.schedule(spec.schedule)
        schedules.make(schedule).check(spec.steps)
        own = {name: value for name, value in spec.keys.items() if name in OWN}
        for name in ("missing", "noise"):
            if name in own:
                own[name] = _listed(own[name])
        try:
            return TableRecipe(
                data=str(data),
                params={name: value for name, value in spec.keys.items() if name not in OWN},
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
            raise UserError(told(problem, list(TableRecipe.model_fields))) from None

    def build(self, recipe: CellRecipe) -> None:
        """On a table of two rows."""
        assert isinstance(recipe, TableRecipe)
        _fits().try_model(recipe)

    def check_data(self, spec: Comparison) -> None:
        """A file with the target among its columns, rows enough, and two classes at least."""
        if spec.data == DEMO:
            raise UserError(
                "which table? say --task table:FILE with a CSV, TSV, Parquet or Arrow file"
            )
        _fits().Parted.of(spec)

    def source(self, spec: Comparison, folder: Path) -> Source:
        """The file."""
        try:
            digest = hashlib.sha256(Path(spec.data).read_bytes()).hexdigest()[:16]
        except OSError as problem:
            raise UserError(f"no table at {spec.data} ({problem.strerror})") from None
        return Source(Path(spec.data), digest)

    def place(self, folder: Path, source: Source) -> Path:
        """The parts, in the folder of the comparison."""
        return folder / files.DATA

    def make_ground(self, spec: Comparison, folder: Path, source: Source) -> Ground:
        """The parts of the table, and the baseline."""
        parted = _fits().Parted.of(spec)
        place = self.place(folder, source)
        parted.save(place, folder / files.SCORE if spec.score else None, most=spec.score)
        return Ground(
            data=str(place),
            corpus=source.digest,
            tokenizer="",
            vocab=0,
            baseline=parted.baseline(spec.keys.get("target_scaling", "auto")),
            counts=parted.counts,
            machine=machine(),
            versions=versions(),
            about=parted.about(),
        )

    def finished(self, job: Job, pulse: Pulse) -> Finished | None:
        """A fit; one that was interrupted begins anew, and ends with the same bits."""
        assert isinstance(job.recipe, TableRecipe)
        end: Finished | None = _fits().fit_cell(job, job.recipe, pulse)
        return end

    def score(self, ground: Ground | None) -> str:
        """Accuracy of classes, r2 of numbers."""
        return "r2" if ground is not None and ground.about.get("kind") == "regress" else "accuracy"

    def questions(self, folder: Path) -> list[Question]:
        """Rows in words."""
        found: list[Question] = _fits().questions(folder / files.SCORE)
        return found

    def right(self, said: str, wanted: str) -> bool:
        """Of labels, without the probability; a number is never quite right."""
        return said.rpartition(" (")[0].strip() == wanted.strip()

    def again(self, spec: Comparison, cell: Cell, config: Path) -> tuple[str, list[str]]:
        """An estimator with the parameters of a cell; its rows are parted otherwise."""
        recipe = self.recipe(spec, cell, data="", tokenizer="")
        chosen = {name: getattr(recipe, name) for name in _fits().AXES} | recipe.params
        pairs = [f"{name}={value}" for name, value in chosen.items()]
        command = ["addnorm", "fit", spec.data, "--target", recipe.target, *pairs, "-o", "fit"]
        return "an estimator like the best cell", command


def _fits() -> ModuleType:
    """The part that needs scikit-learn, imported only where there is a table."""
    try:
        from addnorm.comparison.tasks import table_training
    except ImportError as problem:
        raise UserError(
            f"tables need the package {problem.name}; install addnorm[tabular]"
        ) from None
    return table_training


def _listed(value: Any) -> Any:
    """A single share, or several between commas, as a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return value if isinstance(value, list | tuple) else [value]
