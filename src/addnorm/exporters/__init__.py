"""Export of models to inference engines, with a proof that they compute the same.

    addnorm.export(model, to="onnx", out="folder")
    plain, notes = addnorm.fold(model)

The package is not called `export`, because `addnorm.export` is its main function.
"""

from addnorm.exporters.export_model import export
from addnorm.exporters.exported_run import (
    ExportedRun,
    open_engine,
    open_exported_estimator,
    open_exported_run,
)
from addnorm.exporters.folding import fold
from addnorm.exporters.report import ExportReport, Proof
from addnorm.exporters.targets import TARGETS

__all__ = [
    "TARGETS",
    "ExportReport",
    "ExportedRun",
    "Proof",
    "export",
    "fold",
    "open_engine",
    "open_exported_estimator",
    "open_exported_run",
]
