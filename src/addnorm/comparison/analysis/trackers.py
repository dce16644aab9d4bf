"""Export of a comparison to experiment trackers: one run for each finished cell."""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from addnorm.comparison.analysis.frames import RESULT_FIELDS, cell_records
from addnorm.core.errors import UserError

if TYPE_CHECKING:
    from addnorm.comparison.analysis.study import CellOutcome, Study

TEXT_FIELDS = ("ending", "why")


def export_to_mlflow(
    study: "Study", *, experiment: str, tracking_uri: str | None = None
) -> list[str]:
    """Write each finished cell as a run of an MLflow experiment; return the ids of the runs.

    Args:
        study: the comparison
        experiment: name of the experiment, created if it does not exist
        tracking_uri: where MLflow stores it, such as `sqlite:///mlflow.db`; by default as MLflow is
            set up
    """
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param, RunTag
    except ImportError:
        raise UserError("MLflow: expected the package mlflow; pip install mlflow") from None
    client = MlflowClient(tracking_uri=tracking_uri)
    known = client.get_experiment_by_name(experiment)
    parent = known.experiment_id if known else client.create_experiment(experiment)
    ids = []
    for each, record in _iter_finished(study):
        settings, finals, tags = _split_record(study, record)
        run = client.create_run(parent, run_name=each.cell.name)
        metrics = [
            Metric(name, value, 0, step)
            for step, values in _iter_steps(study, each)
            for name, value in values.items()
        ]
        metrics += [Metric(f"final/{name}", value, 0, 0) for name, value in finals.items()]
        client.log_batch(
            run.info.run_id,
            params=[Param(name, str(value)) for name, value in settings.items()],
            tags=[RunTag(name, str(value)) for name, value in tags.items()],
        )
        for start in range(0, len(metrics), 1000):  # the limit of one call
            client.log_batch(run.info.run_id, metrics=metrics[start : start + 1000])
        client.set_terminated(run.info.run_id, "FAILED" if each.state == "crashed" else "FINISHED")
        ids.append(run.info.run_id)
    return ids


def export_to_wandb(study: "Study", *, project: str, mode: str | None = None) -> list[str]:
    """Write each finished cell as a run of a Weights & Biases project; return the ids of the runs.

    Args:
        study: the comparison
        project: name of the project
        mode: online, offline or disabled; by default as W&B is set up
    """
    try:
        import wandb
    except ImportError:
        raise UserError("W&B: expected the package wandb; pip install wandb") from None
    ids = []
    options: dict[str, Any] = {"mode": mode, "dir": str(study.folder), "reinit": "finish_previous"}
    for each, record in _iter_finished(study):
        settings, finals, tags = _split_record(study, record)
        run = wandb.init(
            project=project,
            group=study.spec.digest,
            name=each.cell.name,
            config=settings | tags,
            **options,
        )
        for step, values in _iter_steps(study, each):
            run.log(values, step=step)
        run.summary.update({f"final/{name}": value for name, value in finals.items()} | tags)
        run.finish(exit_code=1 if each.state == "crashed" else 0)
        ids.append(str(run.id))
    return ids


def _iter_finished(study: "Study") -> Iterator[tuple["CellOutcome", dict[str, Any]]]:
    """Yield each finished cell with its record."""
    for each, record in zip(study.cells, cell_records(study), strict=True):
        if each.state != "waiting":
            yield each, record


def _split_record(
    study: "Study", record: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, float], dict[str, Any]]:
    """Return the settings, the final numbers and the texts of a cell."""
    results = {*RESULT_FIELDS, study.task.objective.column, "state", *TEXT_FIELDS}
    results |= {name for each in study.cells if each.end for name in each.end.scores}
    settings = {k: v for k, v in record.items() if k not in results and k != "cell"}
    finals = {
        name: float(value)
        for name, value in record.items()
        if name in results and isinstance(value, int | float) and math.isfinite(value)
    }
    tags = {name: record[name] for name in ("state", *TEXT_FIELDS) if record.get(name)}
    return settings | {"steps": study.spec.steps, "task": study.spec.task}, finals, tags


def _iter_steps(study: "Study", outcome: "CellOutcome") -> Any:
    """Yield the metrics of the whole model by step, in order of steps."""
    rows = [row for row in study.rows(outcome.cell) if row.get("site") is None]
    rows = [row for row in rows if math.isfinite(row["value"])]
    ordered = sorted(rows, key=lambda row: row["step"])
    for step, members in groupby(ordered, key=lambda row: row["step"]):
        yield (
            step,
            {
                f"{row['split']}/{row['name']}" if row.get("split") else row["name"]: row["value"]
                for row in members
            },
        )
