"""Sinks: where a monitor writes its rows.

A sink has two methods, `write(rows)` and `close()`. The JSON lines of `JsonLines` hold all rows and
are what `addnorm report` reads. Dashboards get a summary of about ten numbers per look, because
hundreds of curves are slow to send and to read; `sites=True` sends every row.

Packages are imported when a sink is made, and none of them is required.
"""

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.rows import Row, write_rows

ROWS_FILE = "rows.jsonl"
PREFIX = "addnorm"
MAX_MLFLOW_METRICS = 1_000
"""Metrics that MLflow accepts in one call."""
SUMMARY: dict[str, tuple[str, Callable[[list[float]], float]]] = {
    "gradient_norm_max": ("gradient_norm", max),
    "gradient_norm_min": ("gradient_norm", min),
    "update_ratio_max": ("update_ratio", max),
    "stream_rms_max": ("stream_rms", max),
    "dependency_min": ("dependency", min),
    "max_logit_max": ("max_logit", max),
    "attention_entropy_min": ("attention_entropy", min),
    "gain_min": ("gain_min", min),
}
"""Numbers that dashboards get by default: name, metric, and how its sites are reduced."""
MODEL_METRICS = ("loss", "gradient_norm", "update_ratio", "spike", "diverged", "nonfinite")


class Sink(Protocol):
    """Receiver of rows."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows in the order in which they were measured."""

    def close(self) -> None:
        """Write what is pending and release files."""


class JsonLines(Sink):
    """Rows appended to `rows.jsonl` of a folder, which `addnorm report` reads."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / ROWS_FILE

    def write(self, rows: Sequence[Row]) -> None:
        write_rows(self.path, rows, append=True)

    def close(self) -> None:
        pass


class CallableSink(Sink):
    """Rows passed to a function, as a list of dicts."""

    def __init__(self, function: Callable[[list[dict[str, Any]]], Any]) -> None:
        self.function = function

    def write(self, rows: Sequence[Row]) -> None:
        self.function([dict(row) for row in rows])

    def close(self) -> None:
        pass


class MetricsSink(Sink):
    """Numbers of each step passed to a function of a dict and the step.

    Args:
        log: function such as `accelerator.log` or `logger.log_metrics`
        sites: whether to send the number of every site instead of a summary
    """

    def __init__(self, log: Callable[[dict[str, float], int], Any], *, sites: bool = False) -> None:
        self.log, self.sites = log, sites

    def write(self, rows: Sequence[Row]) -> None:
        for step, values in group_metrics(rows, sites=self.sites).items():
            self.log(values, step)

    def close(self) -> None:
        pass


class TensorBoard(MetricsSink):
    """Scalars for TensorBoard.

    Args:
        folder: folder of the event files
        sites: whether to write the number of every site instead of a summary
    """

    def __init__(self, folder: str | Path, *, sites: bool = False) -> None:
        _require("tensorboard", "the TensorBoard sink")
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder))
        super().__init__(self._add, sites=sites)

    def _add(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandB(MetricsSink):
    """Metrics for Weights & Biases, with a step of their own: `addnorm/step`.

    The run's own step is not passed, because W&B drops values whose step is behind the last one.

    Args:
        run: the run; by default the active one, else a new one that `close` finishes
        sites: whether to send the number of every site instead of a summary
    """

    def __init__(self, run: Any = None, *, sites: bool = False) -> None:
        wandb = _require("wandb", "the W&B sink")
        self._owns_run = run is None and wandb.run is None
        self.run = run or wandb.run or wandb.init()
        self.run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")
        super().__init__(self._log, sites=sites)

    def _log(self, values: dict[str, float], step: int) -> None:
        self.run.log({**values, f"{PREFIX}/step": step})

    def close(self) -> None:
        if self._owns_run:
            self.run.finish()


class MLflow(MetricsSink):
    """Metrics for the active run of MLflow; without one, for a new one that `close` ends.

    Args:
        sites: whether to send the number of every site instead of a summary
    """

    def __init__(self, *, sites: bool = False) -> None:
        self.mlflow = _require("mlflow", "the MLflow sink")
        self._has_started_run = False
        super().__init__(self._log, sites=sites)

    def _log(self, values: dict[str, float], step: int) -> None:
        if self.mlflow.active_run() is None:
            self.mlflow.start_run()
            self._has_started_run = True
        items = list(values.items())
        for start in range(0, len(items), MAX_MLFLOW_METRICS):
            chunk = dict(items[start : start + MAX_MLFLOW_METRICS])
            self.mlflow.log_metrics(chunk, step=step)

    def close(self) -> None:
        if self._has_started_run:
            self.mlflow.end_run()


NAMED_SINKS = ("tensorboard", "wandb", "mlflow")


def make_sinks(sinks: Any, folder: Path | None) -> list[Sink]:
    """Return the sinks of a monitor: `rows.jsonl` in its folder, and others.

    Args:
        sinks: a sink or several, as for `make_sink`
        folder: folder of the monitor; None writes no file
    """
    several = sinks if isinstance(sinks, list | tuple) else [sinks]
    files = [] if folder is None else [JsonLines(folder)]
    return [*files, *(make_sink(sink, folder) for sink in several)]


def make_sink(sink: Any, folder: str | Path | None) -> Sink:
    """Return a sink from a sink, a function of rows, or a name.

    Args:
        sink: an object with `write` and `close`, a function of a list of rows, or one of
            `tensorboard`, `wandb` and `mlflow`
        folder: folder of the monitor, where TensorBoard writes

    Raises:
        UserError: it is none of these, or its package is not installed
    """
    if isinstance(sink, str):
        if sink not in NAMED_SINKS:
            raise UserError(f"sinks: {unknown_name_message('sink', sink, NAMED_SINKS)}")
        if sink == "tensorboard":
            return TensorBoard(Path(folder) / "tensorboard" if folder else "runs")
        return WandB() if sink == "wandb" else MLflow()
    if callable(getattr(sink, "write", None)) and callable(getattr(sink, "close", None)):
        return sink
    if callable(sink):
        return CallableSink(sink)
    raise UserError(
        "sinks: expected a name, a function of rows or an object with write and close, got "
        f"{type(sink).__name__}"
    )


def group_metrics(rows: Sequence[Row], *, sites: bool = False) -> dict[int, dict[str, float]]:
    """Return the numbers of the measured steps, each under a name for dashboards.

    Args:
        rows: rows of one or more steps
        sites: whether to return every site instead of a summary over sites
    """
    metrics: dict[int, dict[str, float]] = {}
    by_step: dict[int, list[Row]] = {}
    for row in rows:
        if isinstance(row.get("value"), int | float):
            by_step.setdefault(row["step"], []).append(row)
    for step, own in by_step.items():
        values = {
            f"{PREFIX}/{row['name']}": float(row["value"])
            for row in own
            if row.get("site") is None and row["name"] in MODEL_METRICS
        }
        values |= _site_values(own) if sites else _summarize(own)
        metrics[step] = {n: v for n, v in values.items() if math.isfinite(v)}
    return {step: values for step, values in metrics.items() if set(values) - {f"{PREFIX}/loss"}}


def _site_values(rows: Sequence[Row]) -> dict[str, float]:
    """Return the values of all sites, in a folder of their own: a metric cannot be one as well."""
    return {
        f"{PREFIX}/sites/{row['name']}/{row.get('stack', '')}/{row['site']}"
        + (f"/{row['norm']}" if "norm" in row else ""): float(row["value"])
        for row in rows
        if row.get("site") is not None
    }


def _summarize(rows: Sequence[Row]) -> dict[str, float]:
    by_metric: dict[str, list[float]] = {}
    for row in rows:
        if row.get("site") is not None and math.isfinite(row["value"]):
            by_metric.setdefault(row["name"], []).append(float(row["value"]))
    return {
        f"{PREFIX}/{name}": reduce(by_metric[metric])
        for name, (metric, reduce) in SUMMARY.items()
        if metric in by_metric
    }


def _require(package: str, purpose: str) -> Any:
    """Import an optional package; raise `UserError` with one line if it is not installed."""
    try:
        return import_module(package)
    except ImportError:
        raise UserError(
            f"{purpose} requires {package}, which is not installed; run pip install {package}"
        ) from None
