"""The table task: predict one column from the others with the models of `addnorm.tabular`.

Tables need scikit-learn and pandas, which are optional. This module imports without them; methods
that touch a table import `table_data` and `table_training` on demand.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from addnorm.comparison import folder_layout as files
from addnorm.comparison.cell_job import CellRecipe, Heartbeat, Job
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Cell, to_plain
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import DEMO, Comparison
from addnorm.comparison.tasks.base import DataSource, Task
from addnorm.comparison.tasks.table_recipe import TableRecipe
from addnorm.core.errors import UserError
from addnorm.core.files import file_checksum
from addnorm.core.validation import format_validation_error
from addnorm.tasks import Example, Score, get_task
from addnorm.train.environment import collect_versions, describe_machine
from addnorm.train.schedules.base import registry as schedules

TASK_KEYS = ("target", "kind", "missing", "noise")
"""Keys of the task itself; all others are parameters of the estimator."""

R2 = Score(
    "r2",
    "R²",
    "R² is the fraction of the target's variance that is explained; higher is better.",
)


class TableTask(Task):
    """Prediction of one column of a table from the others.

    All cells share one split of the rows: 70 % train, 15 % validation, 15 % test. The loss of a
    cell is the validation loss of its best epoch, whose weights the estimator keeps.
    """

    name, noun, unit, loss_unit = "table", "a table", "rows", ""
    baseline_description = "a model that knows the distribution of the target and ignores its input"
    defaults: ClassVar[Mapping[str, Any]] = {"depth": 2, "steps": 400, "score": 5000}

    # The target, the types of columns and the size of batches belong to the splits.
    shared_keys = (
        *TASK_KEYS,
        *("data", "column_types", "target_scaling", "batch_size", "schedule", "seed", "steps"),
    )

    def list_recipe_keys(self) -> list[str]:
        with explain_missing_package():
            from addnorm.comparison.tasks.table_training import PARAMETERS
        return [*TASK_KEYS, *PARAMETERS]

    def validate_keys(self, keys: Mapping[str, Any]) -> None:
        if not isinstance(keys.get("target"), str) or not keys["target"]:
            raise UserError("target: expected the column to predict; add --target COLUMN")

    def recipe(
        self, spec: Comparison, cell: Cell, *, data: Path | str, tokenizer: Path | str
    ) -> TableRecipe:
        schedule = cell.schedule(spec.schedule)
        schedules.make(schedule).check(spec.steps)
        task_keys = {name: value for name, value in spec.keys.items() if name in TASK_KEYS}
        for name in ("missing", "noise"):
            if name in task_keys:
                task_keys[name] = _to_list(task_keys[name])
        try:
            return TableRecipe(
                data=str(data),
                params={name: value for name, value in spec.keys.items() if name not in TASK_KEYS}
                | {name: to_plain(value) for name, value in cell.arm.extras},
                wiring=cell.arm.wiring,
                norm=cell.arm.norm,
                depth=cell.depth,
                lr=cell.lr,
                schedule=schedule,
                seed=cell.seed,
                steps=spec.steps,
                **task_keys,
            )
        except ValidationError as error:
            known = list(TableRecipe.model_fields)
            raise UserError(format_validation_error(error, known)) from None

    def build(self, recipe: CellRecipe) -> None:
        with explain_missing_package():
            from addnorm.comparison.tasks.table_training import build_on_tiny_table
        assert isinstance(recipe, TableRecipe)
        build_on_tiny_table(recipe)

    def check_data(self, spec: Comparison) -> None:
        with explain_missing_package():
            from addnorm.comparison.tasks.table_data import TableSplits
        if spec.data == DEMO:
            raise UserError(
                "task: expected table:FILE with a CSV, TSV, Parquet or Arrow file, got no file"
            )
        TableSplits.from_spec(spec)

    def prepare_source(self, spec: Comparison, folder: Path) -> DataSource:
        try:
            digest = file_checksum(Path(spec.data))[:16]
        except OSError as error:
            raise UserError(f"no table at {spec.data} ({error.strerror})") from None
        return DataSource(Path(spec.data), digest)

    def data_path(self, folder: Path, source: DataSource) -> Path:
        return folder / files.DATA

    def prepare_shared_data(self, spec: Comparison, folder: Path, source: DataSource) -> SharedData:
        with explain_missing_package():
            from addnorm.comparison.tasks.table_data import TableSplits
        splits = TableSplits.from_spec(spec)
        data = self.data_path(folder, source)
        splits.save(data, folder / files.SCORE if spec.score else None, max_rows=spec.score)
        return SharedData(
            data=str(data),
            corpus=source.digest,
            tokenizer="",
            vocab=0,
            baseline=splits.baseline(spec.keys.get("target_scaling", "auto")),
            counts=splits.counts,
            machine=describe_machine(),
            versions=collect_versions(),
            about=splits.about(),
        )

    def check_shared_data(self, folder: Path, shared_data: SharedData) -> None:
        with explain_missing_package():
            from addnorm.comparison.tasks.table_data import TableSplits
        score = folder / files.SCORE
        TableSplits.read(folder / files.DATA, score if score.exists() else None)

    def train_and_score(self, job: Job, heartbeat: Heartbeat) -> CellResult | None:
        with explain_missing_package():
            from addnorm.comparison.tasks.table_training import fit_cell
        assert isinstance(job.recipe, TableRecipe)
        return fit_cell(job, job.recipe, heartbeat)

    def score(self, shared_data: SharedData | None) -> Score:
        kind = None if shared_data is None else shared_data.about.get("kind")
        return R2 if kind == "regress" else get_task("classify").primary_score

    def read_examples(self, folder: Path) -> list[Example]:
        with explain_missing_package():
            from addnorm.comparison.tasks.table_data import read_examples
        return read_examples(folder / files.SCORE)

    def is_correct(self, answer: str, expected: str) -> bool:
        # A label is followed by its probability; a predicted number is never called correct.
        return answer.rpartition(" (")[0].strip() == expected.strip()

    def reproduce_command(
        self, spec: Comparison, cell: Cell, config: Path
    ) -> tuple[str, list[str]]:
        with explain_missing_package():
            from addnorm.comparison.tasks.table_training import AXES
        recipe = self.recipe(spec, cell, data="", tokenizer="")
        params = {name: getattr(recipe, name) for name in AXES} | recipe.params
        pairs = [f"{name}={value}" for name, value in params.items()]
        command = ["addnorm", "fit", spec.data, "--target", recipe.target, *pairs, "-o", "fit"]
        return "an estimator like the best cell", command


@contextmanager
def explain_missing_package() -> Iterator[None]:
    """Turn the ImportError of an optional package inside the block into a UserError."""
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"tables require the package {error.name}; install addnorm[tabular]"
        ) from None


def _to_list(value: Any) -> Any:
    """Return a single fraction or a comma-separated string as a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return value if isinstance(value, list | tuple) else [value]
