"""Exported folders opened for inference, with the interface of a trained run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import Tokenizer
from addnorm.decode.engine import InferenceEngine
from addnorm.exporters.report import ExportReport
from addnorm.exporters.targets import get_target


@dataclass(frozen=True)
class ExportedRecipe:
    """Recipe keys that inference and evaluation read."""

    data: str = ""
    max_length: int = 128
    batch_tokens: int = 512
    task_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportedRun:
    """An exported run: what `translate`, `generate`, `classify` and `evaluate` use of a run."""

    folder: Path
    report: ExportReport
    model: InferenceEngine
    tokenizer: Tokenizer

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.report.task or ""

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names in the order of the logits."""
        return self.report.labels

    @property
    def recipe(self) -> ExportedRecipe:
        """Recipe keys that inference uses."""
        return ExportedRecipe(**self.report.recipe)


def open_engine(folder: str | Path) -> InferenceEngine:
    """Open the model of an exported folder with its engine."""
    report = ExportReport.read(Path(folder))
    target = get_target(report.target)
    target.check_packages()
    return target.open(Path(folder), report)


def open_exported_run(folder: str | Path) -> ExportedRun:
    """Open an exported folder of a text run.

    Raises:
        UserError: it is not an export, files are missing or changed, or it has no tokenizer
    """
    folder = Path(folder)
    report = ExportReport.read(folder)
    target = get_target(report.target)
    if report.task is None:
        what = "an estimator" if report.kind == "table" else "a model without a tokenizer"
        raise UserError(f"{folder}: expected the export of a text run, got that of {what}")
    target.check_packages()
    tokenizer = Tokenizer.load(folder / target.tokenizer_file)
    return ExportedRun(folder, report, target.open(folder, report), tokenizer)
