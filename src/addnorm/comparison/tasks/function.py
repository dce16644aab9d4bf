"""The adapter from a function that trains one cell to the interface of a comparison."""

import math
import random
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field

from addnorm.comparison.cell_job import CellRecipe, Heartbeat, Job
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import UNSPECIFIED, Cell, format_value, to_plain, write_value
from addnorm.comparison.outcomes import LossSummary, Objective
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import DEMO, Comparison
from addnorm.comparison.tasks.base import DataSource, DistributedTask
from addnorm.comparison.tasks.function_cell import LOSS_SPLITS, CellInterrupted, to_number
from addnorm.comparison.tasks.function_cell import Cell as FunctionCell
from addnorm.comparison.tasks.function_registry import VALID_LOSS, TaskFunction
from addnorm.core.errors import UserError
from addnorm.core.files import write_yaml
from addnorm.core.interrupts import graceful_shutdown
from addnorm.core.rows import Row, read_rows
from addnorm.tasks import Example, Score
from addnorm.train.environment import collect_versions, describe_machine
from addnorm.train.run_folder import CONFIG, ROWS

FUNCTION_FOLDER = "files"
"""Folder in that of a cell which the function may write to."""
METRIC, DIRECTION, HIGHER = "metric", "direction", "higher is better"
BASELINE, STATED, ESTIMATED = "origin of the baseline", "stated by the task", "first logged values"
"""Facts of the task in `facts.json`, from which a report knows it without its code."""
LABELS = {VALID_LOSS: "validation loss", "train_loss": "training loss"}


class FunctionRecipe(BaseModel):
    """Settings of a cell of a task of one's own, as plain data."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: str
    data: str
    wiring: str
    norm: str
    depth: int
    lr: float
    warmup: int
    schedule: str
    seed: int
    steps: int
    values: dict[str, Any] = Field(default_factory=dict)
    """Keys of the comparison and values of its further axes."""

    def to_flat_dict(self) -> dict[str, Any]:
        """Return all keys with their values."""
        data = self.model_dump(mode="json")
        values: dict[str, Any] = data.pop("values")
        return data | values

    def to_yaml(self) -> str:
        """Return all keys as YAML."""
        return yaml.safe_dump(self.to_flat_dict(), sort_keys=False, allow_unicode=True)

    def save(self, path: Path) -> None:
        """Write the keys to a YAML file, `config.yaml` of the cell."""
        write_yaml(path, self.to_yaml())


class FunctionTask(DistributedTask):
    """A task whose cells are calls of the user's function."""

    unit, loss_unit = "steps", ""
    has_free_names: ClassVar[bool] = True
    is_drawn: ClassVar[bool] = False

    def __init__(self, definition: TaskFunction) -> None:
        self.definition = definition
        self.name = definition.name  # type: ignore[misc]  # class variables of Task
        self.noun = definition.title or definition.name  # type: ignore[misc]
        self.defaults = {  # type: ignore[misc]
            "wiring": UNSPECIFIED,
            "norm": UNSPECIFIED,
            "score": 0,
        } | dict(definition.defaults)
        label = LABELS.get(definition.metric, definition.metric)
        self.objective = Objective(  # type: ignore[misc]
            label, "loss" if definition.metric == VALID_LOSS else definition.metric,
            definition.maximize,
        )  # fmt: skip
        self.baseline_description = (  # type: ignore[misc]
            "an untrained model: the median of the first values that the cells logged"
            if definition.baseline is None
            else "a model that knows nothing, which the task states"
        )

    @classmethod
    def from_facts(cls, name: str, shared_data: SharedData | None) -> "FunctionTask":
        """Return the task of a stored comparison, without its code."""
        about = {} if shared_data is None else shared_data.about
        return cls(
            TaskFunction(
                name,
                None,
                metric=about.get(METRIC, VALID_LOSS),
                maximize=about.get(DIRECTION) == HIGHER,
                baseline=math.nan if about.get(BASELINE) == STATED else None,
                title=about.get("task", ""),
            )
        )

    def list_recipe_keys(self) -> list[str]:
        return []

    def validate_keys(self, keys: Mapping[str, Any]) -> None:
        for name in keys:
            if not name.isidentifier() or hasattr(FunctionCell, name) or name in ("data", "name"):
                raise UserError(
                    f"{name}: expected a name that can be an attribute of addnorm.Cell and is not "
                    "one already; rename it"
                )

    def recipe(
        self, spec: Comparison, cell: Cell, *, data: Path | str, tokenizer: Path | str
    ) -> FunctionRecipe:
        if cell.warmup is None:
            raise UserError(
                f"warmup: expected steps, got own; task {self.noun} has no recommended schedule"
            )
        return FunctionRecipe(
            task=self.name,
            data=spec.data,
            wiring=cell.arm.wiring,
            norm=cell.arm.norm,
            depth=cell.depth,
            lr=cell.lr,
            warmup=cell.warmup,
            schedule=spec.schedule,
            seed=cell.seed,
            steps=spec.steps,
            values=spec.keys | {name: to_plain(value) for name, value in cell.arm.extras},
        )

    def build(self, recipe: CellRecipe) -> None:
        """Do nothing: only the function knows the model."""

    def check_data(self, spec: Comparison) -> None:
        if spec.data != DEMO and not Path(spec.data).exists():
            raise UserError(f"data: expected a file or folder, got {spec.data}, which is missing")

    def prepare_source(self, spec: Comparison, folder: Path) -> DataSource:
        return DataSource(folder if spec.data == DEMO else Path(spec.data), "")

    def prepare_shared_data(self, spec: Comparison, folder: Path, source: DataSource) -> SharedData:
        definition = self.definition
        about = {"task": self.noun, METRIC: definition.metric}
        about |= {DIRECTION: HIGHER if definition.maximize else "lower is better"}
        about[BASELINE] = ESTIMATED if definition.baseline is None else STATED
        baseline = math.nan if definition.baseline is None else definition.baseline
        return SharedData(
            data=str(source.path),
            corpus="",
            tokenizer="",
            vocab=0,
            baseline=self.objective.to_loss(baseline),
            counts={},
            machine=describe_machine(),
            versions=collect_versions(),
            about=about,
        )

    def check_shared_data(self, folder: Path, shared_data: SharedData) -> None:
        """Do nothing: the data belong to the function."""

    def train_and_score(self, job: Job, heartbeat: Heartbeat) -> CellResult | None:
        recipe, start = job.recipe, time.monotonic()
        assert isinstance(recipe, FunctionRecipe)
        recipe.save(job.folder / CONFIG)
        try:
            returned = self._call_function(job, heartbeat, job.folder / ROWS)
        except CellInterrupted:
            return None
        rows: list[Row] = []
        if (job.folder / ROWS).exists():
            rows = list(read_rows(job.folder / ROWS))
        return self._make_result(rows, returned, heartbeat, time.monotonic() - start)

    def join_training(self, job: Job) -> None:
        with TemporaryDirectory() as folder, suppress(CellInterrupted):
            heartbeat = Heartbeat(lambda step, loss: None)
            self._call_function(job, heartbeat, Path(folder) / ROWS)  # its rows are dropped

    def _call_function(self, job: Job, heartbeat: Heartbeat, rows_file: Path) -> Any:
        recipe, function = job.recipe, self.definition.function
        assert function is not None
        folder = job.folder / FUNCTION_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        values = {name: value for name, value in recipe.to_flat_dict().items() if name != "task"}
        with graceful_shutdown() as stop_flag:
            cell = FunctionCell(
                values | {"name": job.name},
                folder=folder,
                rows_file=rows_file,
                heartbeat=heartbeat,
                stop_flag=stop_flag,
                pause_step=job.pause_step,
            )
            _seed_everything(recipe.seed)
            return function(cell)

    def _make_result(
        self, rows: list[Row], returned: Any, heartbeat: Heartbeat, seconds: float
    ) -> CellResult:
        metric, objective = self.definition.metric, self.objective
        final = _check_returned(returned)
        logged = [objective.to_loss(row["value"]) for row in select_metric(rows, metric)]
        if metric in final:
            logged.append(objective.to_loss(final[metric]))
        if not logged:
            known = ", ".join(dict.fromkeys([*(_metric_name(row) for row in rows), *final]))
            raise UserError(
                f"{metric}: expected it from cell.log or in the returned mapping, got "
                f"{known or 'nothing'}; log it, or name another one with metric="
            )
        course = self._summarize(rows, logged)
        last = {_metric_name(row): float(row["value"]) for row in rows if row.get("site") is None}
        scores = {name: value for name, value in (last | final).items() if name not in LABELS}
        is_finite = math.isfinite(logged[-1])
        return CellResult(
            "done" if is_finite else "diverged",
            "" if is_finite else f"{metric} is {logged[-1]:g}",
            step=max((row["step"] for row in rows), default=0),
            loss=logged[-1] if is_finite else math.nan,
            lowest=course.lowest,
            scores={name: value for name, value in scores.items() if math.isfinite(value)},
            seconds=seconds,
            rate=heartbeat.rate,
            recent=course.recent,
        )

    def _summarize(self, rows: list[Row], logged: list[float]) -> LossSummary:
        losses = [row for row in rows if row["name"] == "loss" and row.get("split") == "train"]
        if self.definition.metric != VALID_LOSS:  # training losses have another scale
            losses = [{"name": "loss", "split": "train", "value": value} for value in logged]
        valid = [{"name": "loss", "split": "valid", "value": value} for value in logged]
        return LossSummary.from_rows([*losses, *valid])

    def estimate_baseline(self, rows_by_cell: Iterable[list[Row]]) -> float:
        """Return the median of the first values that cells logged; NaN if there are none.

        Cells that logged once say nothing about an untrained model.
        """
        first = []
        for rows in rows_by_cell:
            series = list(select_metric(rows, self.definition.metric))
            if self.definition.metric == VALID_LOSS:
                series = [row for row in rows if row["name"] == "loss" and row.get("site") is None]
            if series and series[0]["step"] < series[-1]["step"]:
                first.append(self.objective.to_loss(series[0]["value"]))
        finite = [value for value in first if math.isfinite(value)]
        return float(np.median(finite)) if finite else math.nan

    def score(self, shared_data: SharedData | None) -> Score:
        return Score("", "", "")

    def read_examples(self, folder: Path) -> list[Example]:
        return []

    def is_correct(self, answer: str, expected: str) -> bool:
        return False

    def reproduce_command(
        self, spec: Comparison, cell: Cell, config: Path
    ) -> tuple[str, list[str]]:
        values = {"wiring": cell.arm.wiring, "norm": cell.arm.norm, "depth": cell.depth}
        values |= {"warmup": cell.warmup, "lr": cell.lr} | dict(cell.arm.extras)
        axes = [f"{name}={write_value(value)}" for name, value in values.items()]
        keys = [f"{name}={format_value(value)}" for name, value in spec.keys.items()]
        options = [part for axis in axes for part in ("--axis", axis)]
        options += ["--seeds", "1", "--steps", str(spec.steps), f"first_seed={cell.seed}", *keys]
        command = ["addnorm", "compare", "--task", spec.task, *options, "-o", "cell"]
        return "one cell alone", command


def select_metric(rows: Iterable[Row], metric: str) -> Iterable[Row]:
    """Return the rows of a metric of the whole model, by its name in `Cell.log`."""
    split = LOSS_SPLITS.get(metric)
    name = "loss" if split else metric
    return (
        row
        for row in rows
        if row["name"] == name
        and row.get("site") is None
        and (split is None or (row.get("split") or "train") == split)
    )


def _metric_name(row: Row) -> str:
    if row["name"] == "loss":
        return f"{row.get('split') or 'train'}_loss"
    return str(row["name"])


def _check_returned(returned: Any) -> dict[str, float]:
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise UserError(
            f"expected None or a mapping with final metrics from the function of the task, got "
            f"{type(returned).__name__}"
        )
    return {str(name): to_number(str(name), value) for name, value in returned.items()}


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
