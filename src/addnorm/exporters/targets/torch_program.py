"""`--to torch`: programs of `torch.export`, which torch runs without the code of addnorm."""

from pathlib import Path
from typing import ClassVar

from addnorm.decode.engine import InferenceEngine
from addnorm.exporters.report import ExportReport
from addnorm.exporters.source import ExportSource
from addnorm.exporters.targets.base import (
    ALL_KINDS,
    ExportOptions,
    ExportTarget,
    PreparedExport,
)


class TorchTarget(ExportTarget):
    """Exported programs, `.pt2` files."""

    name, title = "torch", "torch.export"
    kinds: ClassVar = ALL_KINDS

    def prepare(self, source: ExportSource, options: ExportOptions) -> PreparedExport:
        return PreparedExport(model=source.model, form=source.wiring, options=options)

    def write(self, prepared: PreparedExport, source: ExportSource, folder: Path) -> None:
        raise NotImplementedError

    def open(self, folder: Path, report: ExportReport) -> InferenceEngine:
        raise NotImplementedError
