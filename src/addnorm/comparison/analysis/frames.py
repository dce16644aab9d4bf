"""Results as tables: one record for each cell, measured row, or arm and depth."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from addnorm.comparison.analysis.arm_summary import ArmSummary, warmup_label
from addnorm.comparison.grid import to_plain
from addnorm.comparison.outcomes import STATES
from addnorm.core.errors import UserError

if TYPE_CHECKING:
    from addnorm.comparison.analysis.study import CellOutcome, Study

RESULT_FIELDS = (
    *("ending", "why", "step", "loss", "tokens", "seconds", "rate", "memory", "parameters"),
)
"""Fields of a cell's result; `loss` gets the name of the metric that cells are judged by."""
Library = Literal["pandas", "polars"]


def cell_settings(outcome: "CellOutcome") -> dict[str, Any]:
    """Return the name, the settings and the state of a cell."""
    cell = outcome.cell
    return {
        "cell": cell.name,
        "arm": cell.arm.name,
        "wiring": cell.arm.wiring,
        "norm": cell.arm.norm,
        **{axis_column(name): to_plain(value) for name, value in cell.arm.extras},
        "own_schedule": cell.arm.own,
        "depth": cell.depth,
        "warmup": "own" if cell.warmup is None else cell.warmup,
        "lr": cell.lr,
        "seed": cell.seed,
        "state": outcome.state,
    }


def axis_column(name: str) -> str:
    """Return the column of a further axis; one that has the name of another column gets a suffix.

    >>> axis_column("optimizer"), axis_column("step")
    ('optimizer', 'step_axis')
    """
    taken = (*RESULT_FIELDS, "cell", "arm", "own_schedule", "state", "name", "value")
    return f"{name}_axis" if name in taken else name


def cell_records(study: "Study") -> list[dict[str, Any]]:
    """Return one record for each cell: settings, state, result and scores."""
    objective = study.task.objective
    scores = sorted({name for each in study.cells if each.end for name in each.end.scores})
    names = {"loss": objective.column}
    records = []
    for each in study.cells:
        result = {names.get(name, name): getattr(each.end, name, None) for name in RESULT_FIELDS}
        if each.end is not None:
            result[objective.column] = objective.to_loss(each.end.loss)
        own = each.end.scores if each.end is not None else {}
        records.append(cell_settings(each) | {name: own.get(name) for name in scores} | result)
    return records


def row_records(study: "Study") -> Iterator[dict[str, Any]]:
    """Yield one record for each measured row, with the settings of its cell."""
    for each in study.cells:
        settings = cell_settings(each)
        for row in study.rows(each.cell):
            yield settings | dict(row)


def summary_records(study: "Study") -> list[dict[str, Any]]:
    """Return one record for each arm and depth: its best setting, means and intervals."""
    return [_summary_record(study, line) for line in study.summary]


def _summary_record(study: "Study", line: ArmSummary) -> dict[str, Any]:
    objective = study.task.objective
    values: dict[str, Any] = {"arm": line.arm.name, "depth": line.depth}
    values |= {axis_column(name): to_plain(value) for name, value in line.arm.extras}
    values |= {state: line.states.get(state, 0) for state in STATES}
    values["stable"] = "; ".join(f"{warmup_label(e.warmup)}: {e.format()}" for e in line.stable)
    values["best"] = line.best.format() if line.best else ""
    values["edge"] = line.edge
    for name, estimate in (
        (objective.column, line.value),
        (study.score.name, line.score),
        ("behind", line.behind),
    ):
        if name:
            values |= {
                f"{name}_mean": estimate.mean if estimate else None,
                f"{name}_half": estimate.half if estimate else None,
                f"{name}_count": estimate.count if estimate else None,
            }
    values["confidence_level"] = study.spec.confidence_level
    return values | {"speed": line.speed, "reference": line.reference, "memory": line.memory}


def make_frame(records: Iterable[dict[str, Any]], library: str) -> Any:
    """Return records as a data frame.

    Args:
        records: rows of the frame; missing keys become missing values
        library: pandas or polars

    Raises:
        UserError: another library, or it is not installed
    """
    records = list(records)
    columns = list(dict.fromkeys(name for record in records for name in record))
    complete = [{name: record.get(name) for name in columns} for record in records]
    try:
        if library == "pandas":
            import pandas

            return pandas.DataFrame(complete, columns=columns)
        if library == "polars":
            import polars

            texts = [{k: _to_polars(v) for k, v in record.items()} for record in complete]
            return polars.DataFrame(
                texts, schema=columns if not texts else None, infer_schema_length=None, strict=False
            )
    except ImportError as error:
        raise UserError(f"a frame needs the package {error.name}; install it") from None
    raise UserError(f"library: expected pandas or polars, got {library!r}")


def _to_polars(value: Any) -> Any:
    return str(value) if isinstance(value, list) else value
