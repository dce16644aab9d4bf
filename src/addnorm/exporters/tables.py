"""Exported estimators: the network as a graph, columns and target as JSON beside it.

`estimator.json` holds the encoding of every column (quantiles of numbers, codes of categories and
words), the classes and the calibration, in the format of a saved estimator without its weights.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from addnorm.core.errors import UserError
from addnorm.core.files import read_json_and_files, write_json
from addnorm.exporters.graph_engine import GraphFunction, GraphSpec
from addnorm.exporters.report import ExportReport
from addnorm.exporters.source import ESTIMATOR_FILE, ExportSource
from addnorm.models.tabular import TableBatch
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor
from addnorm.tabular.columns.table_files import read_table
from addnorm.tabular.fit_run import align_columns
from addnorm.tabular.io.store import describe_estimator, restore_estimator
from addnorm.tabular.task_setup import split_rows
from addnorm.tabular.training.prediction import has_exact_widths

MAX_ROWS = 512
"""Rows of a proof."""
NO_WEIGHTS = sha256(b"").hexdigest()
DEFAULT_TARGET = "prediction"
"""Name of the output column if the estimator was not fitted by `addnorm fit`."""


class TableEngine:
    """Network of an exported estimator."""

    def __init__(self, run: GraphFunction, spec: GraphSpec) -> None:
        self.run, self.spec = run, spec

    def __call__(self, cells: TableBatch) -> np.ndarray:
        """Return the outputs of the network for each row, in float64."""
        tensors = cells.to("cpu")._asdict()
        outputs = self.run({name: tensors[name].contiguous() for name in self.spec.inputs})
        return outputs["outputs"].double().numpy()


class _Exported:
    """Estimator whose network an inference engine runs."""

    module_: TableEngine

    def _predict_cells(self, cells: TableBatch, *, embeddings: bool = False) -> np.ndarray:
        if embeddings:
            raise UserError(
                "transform: expected a fitted estimator, got an exported one, which returns "
                "predictions only"
            )
        return self.module_(cells)


class ExportedClassifier(_Exported, TabularTransformerClassifier):  # type: ignore[misc]
    """Classifier whose network an inference engine runs."""


class ExportedRegressor(_Exported, TabularTransformerRegressor):  # type: ignore[misc]
    """Regressor whose network an inference engine runs."""


EXPORTED: dict[str, type] = {
    "TabularTransformerClassifier": ExportedClassifier,
    "TabularTransformerRegressor": ExportedRegressor,
}


def table_settings(source: ExportSource) -> dict[str, Any]:
    """Return the target and the columns that are not features, for `addnorm predict`."""
    config = source.fit_config
    if config is None:
        return {"target": DEFAULT_TARGET, "types": {}, "ids": [], "drop": []}
    names = {"ids": list(config.ids), "drop": list(config.drop)}
    return {"target": config.target, "types": dict(config.types), **names}


def predicts_in_float64(source: ExportSource) -> bool:
    """Return whether the estimator predicts in float64, which a graph in float32 does not."""
    model = source.estimator.module_
    return next(model.parameters()).dtype == torch.float64 or not has_exact_widths(model)


def write_preprocessing(estimator: Any, folder: Path) -> None:
    """Write `estimator.json`."""
    write_json(folder / ESTIMATOR_FILE, describe_estimator(estimator) | {"weights": NO_WEIGHTS})


def restore_exported(folder: Path, engine: TableEngine) -> Any:
    """Return the estimator of an exported folder, with an engine as its network."""
    path = folder / ESTIMATOR_FILE
    data, _ = read_json_and_files(path, hint="export the estimator again")
    estimator, _, _ = restore_estimator(data, path, EXPORTED)
    estimator.module_ = engine
    return estimator


def collect_rows(source: ExportSource) -> tuple[str, TableBatch]:
    """Return held-out rows and where they come from; reference rows of the fit without any."""
    estimator, config = source.estimator, source.fit_config
    if config is not None and Path(config.table).is_file():
        try:
            return _held_out_rows(estimator, config)
        except (UserError, ValueError):  # the table has changed since the fit
            pass
    rows: TableBatch = estimator.reference_
    return "reference rows of the fit", rows.select_rows(slice(0, MAX_ROWS))


def _held_out_rows(estimator: Any, config: Any) -> tuple[str, TableBatch]:
    frame, _ = read_table(config.table, types=config.types)
    X, _ = align_columns(frame, estimator, config.target)
    name = f"rows of {config.table}"
    if config.holdout:
        is_classifier = config.task == "classify"
        _, test = split_rows(
            frame[config.target], config.holdout, classify=is_classifier, seed=config.seed
        )
        X, name = X.iloc[test], f"test rows of {config.table}"
    return name, estimator.encoder_.encode(X.iloc[:MAX_ROWS])


def compare_rows(
    source: ExportSource, engine: TableEngine, cells: TableBatch
) -> tuple[float, float, tuple[int, int] | None]:
    """Return the largest difference, the largest size of outputs, and equal predicted classes."""
    expected = torch.from_numpy(source.estimator._predict_cells(cells))
    got = torch.from_numpy(engine(cells))
    difference = (got - expected).abs().nan_to_num(torch.inf)
    largest = float(expected.abs().max())
    if not hasattr(source.estimator, "classes_"):
        return float(difference.max()), largest, None
    same = int((got.argmax(1) == expected.argmax(1)).sum())
    return float(difference.max()), largest, (same, cells.num_rows)


def open_exported_table(
    folder: str | Path, functions: Mapping[str, GraphFunction], report: ExportReport
) -> Any:
    """Return the estimator of an exported folder."""
    spec = report.settings["graphs"]["model"]
    engine = TableEngine(functions["model"], GraphSpec(tuple(spec["inputs"]), ("outputs",)))
    return restore_exported(Path(folder), engine)
