"""Export of models to inference engines, with a proof that they compute the same.

    addnorm.export(model, to="onnx", out="folder")
    plain, notes = addnorm.fold(model)

The package is not called `export`, because `addnorm.export` is its main function.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# Imported on first use: every command that decodes asks `report` whether its folder is an export,
# and should not wait for transformers.
_HOME = {
    "TARGETS": "targets",
    "ExportReport": "report",
    "ExportedRun": "exported_run",
    "Proof": "report",
    "export": "export_model",
    "fold": "folding",
    "open_engine": "exported_run",
    "open_exported_estimator": "exported_run",
    "open_exported_run": "exported_run",
}

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


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
