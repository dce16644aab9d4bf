"""Exported folders opened for inference, with the interface of a trained run."""

from collections.abc import Mapping
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


def open_exported_estimator(folder: str | Path) -> tuple[Mapping[str, Any], Any]:
    """Open an exported estimator.

    Returns:
        The name of the target and the types of CSV columns (`target`, `types`), and the estimator.

    Raises:
        UserError: it is not the export of an estimator, or files are missing or changed
    """
    folder = Path(folder)
    report = ExportReport.read(folder)
    target = get_target(report.target)
    if report.kind != "table":
        raise UserError(
            f"{folder}: expected the export of an estimator, got that of a {report.kind} model"
        )
    target.check_packages()
    return report.settings["table"], target.open_table(folder, report)


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
