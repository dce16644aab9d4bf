"""Interface of export targets: one class per target, named by --to.

`addnorm.export` calls the methods of a target in this order:

    prepare    fold the model into a form that the target has, or refuse with site, term and way out
    write      write the files into an empty temporary folder
    open       open the files again, by the engine that will run them
    compare    run original and exported model on held-out inputs

Only if the comparison succeeds, the temporary folder becomes the exported folder.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from addnorm.core.errors import ExportRefusedError, UserError
from addnorm.decode.engine import InferenceEngine
from addnorm.exporters.inputs import ModelInputs
from addnorm.exporters.report import ExportReport, Grade
from addnorm.exporters.source import ExportSource
from addnorm.models import Model
from addnorm.models.tabular import TableModel

ALL_KINDS = ("lm", "prefix_lm", "masked_lm", "seq2seq", "classifier", "table")
"""Kinds of models, and `table` for estimators."""
FLOAT32_TOLERANCE = 1e-4
"""Accepted difference of logits in float32, per unit of the largest logit."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Options of an export; a target rejects those that it does not have."""

    quantize: str | None = None
    """Number format of the weights, such as int8; None writes them as they are."""
    family: str | None = None
    """Class of model to write (--as), such as llama; None lets the target choose."""
    tolerance: float | None = None
    """Largest accepted difference of logits; None for the target's own."""


@dataclass(frozen=True, kw_only=True)
class PreparedExport:
    """What a target is going to write."""

    model: Model | TableModel
    """The model that the files will hold: a folded one, or the original."""
    form: str
    """Name of what is written; see `ExportReport.form`."""
    grade: Grade = "exact"
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """JSON data that `open` gets back as `ExportReport.settings`."""
    options: ExportOptions = ExportOptions()


class ExportTarget(ABC):
    """A file format and the engine that runs it."""

    name: ClassVar[str]
    """Name of the target, the value of `--to`."""
    title: ClassVar[str]
    """Name of the engine in messages."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Modules that must be installed."""
    min_torch: ClassVar[str] = ""
    """Oldest torch that can write it; empty if every version that addnorm supports can."""
    kinds: ClassVar[tuple[str, ...]]
    """Kinds of models that it can express; `table` for estimators."""
    quantizations: ClassVar[tuple[str, ...]] = ()
    """Values of --quantize."""
    families: ClassVar[tuple[str, ...]] = ()
    """Names of classes that the target can write, the values of `--as`."""
    tokenizer_file: ClassVar[str] = "tokenizer.json"
    """File of our own tokenizer; other than the default if the engine has a file of that name."""

    def check(self, source: ExportSource, options: ExportOptions) -> None:
        """Raise `UserError` for missing packages, and for kinds and options that it lacks."""
        self.check_packages()
        for option, value, known in (
            ("--quantize", options.quantize, self.quantizations),
            ("--as", options.family, self.families),
        ):
            if value is not None and value not in known:
                expected = f"one of {', '.join(known)}" if len(known) > 3 else " or ".join(known)
                raise UserError(
                    f"{option}: expected {expected or 'none'} for --to {self.name}, got {value!r}"
                )
        tolerance = options.tolerance
        if tolerance is not None and not 0 <= tolerance < math.inf:
            raise UserError(f"--tolerance: expected a number from 0, got {tolerance:g}")
        if source.kind not in self.kinds:
            raise ExportRefusedError(
                f"model: expected kind {' or '.join(self.kinds)} for --to {self.name}, got kind "
                f"{source.kind!r}; use --to onnx or --to torch"
            )

    def check_packages(self) -> None:
        """Raise `UserError` if a package is not installed, or torch is too old."""
        if self.min_torch and torch.__version__ < self.min_torch:
            raise UserError(
                f"--to {self.name}: expected torch {self.min_torch} or newer, got "
                f"{torch.__version__}; upgrade torch, or use --to torch"
            )
        missing = [name for name in self.packages if find_spec(name) is None]
        if missing:
            raise UserError(
                f"--to {self.name}: expected {' and '.join(missing)} to be installed; run "
                "pip install 'addnorm[export]'"
            )

    def versions(self) -> dict[str, str]:
        """Return the versions of the engine's packages."""
        return {name: version(name) for name in self.packages}

    @abstractmethod
    def prepare(self, source: ExportSource, options: ExportOptions) -> PreparedExport:
        """Choose the form to write.

        Raises:
            ExportRefusedError: a part of the model has no counterpart; the message names the site
                and the term, and suggests a target that can take it
        """

    @abstractmethod
    def write(self, prepared: PreparedExport, source: ExportSource, folder: Path) -> None:
        """Write the files of the model into a folder; not the tokenizer, not `export.json`."""

    @abstractmethod
    def open(self, folder: Path, report: ExportReport) -> InferenceEngine:
        """Open the files of a folder with the engine.

        Args:
            folder: the exported folder
            report: its report; `settings` are those of the prepared export
        """

    def open_table(self, folder: Path, report: ExportReport) -> Any:
        """Open an exported estimator with the engine; only for targets of kind `table`."""
        raise ExportRefusedError(f"{self.name} does not take estimators; use --to onnx or torch")

    def compare_columns(self, folder: Path, source: ExportSource) -> float:
        """Return the largest difference of outputs for odd raw columns; 0 if no file reads them."""
        return 0.0

    def outputs(self, model: Model | InferenceEngine, inputs: ModelInputs) -> Tensor:
        """Return what is compared, for the original and for the exported model.

        By default logits at valid tokens, (..., vocab). A target whose engine returns no logits
        overrides it, for example with log-probabilities of the targets.
        """
        return inputs.select_valid(model(*inputs.args, **inputs.kwargs))

    def tolerance(self, prepared: PreparedExport, largest: float) -> float:
        """Return the largest accepted difference, for outputs of at most this size."""
        return FLOAT32_TOLERANCE * max(1.0, largest)


def refuse(site: str, term: str, target: str, way_out: str = "use --to onnx") -> ExportRefusedError:
    """Return the error for a part that a target lacks.

    >>> print(refuse("decoder", "hyper-connections keep 4 streams", "CTranslate2 has one"))
    decoder: hyper-connections keep 4 streams; CTranslate2 has one; use --to onnx
    """
    return ExportRefusedError(f"{site}: {term}; {target}; {way_out}")


def penalty_notes(source: ExportSource, program: str) -> tuple[str, ...]:
    """Return how beam search differs from ours where a program decodes without addnorm."""
    if source.kind not in ("lm", "seq2seq"):
        return ()
    return (
        f"beam search of addnorm ranks by --length-penalty; {program} alone divides scores by "
        "length ** length_penalty, where 0 and 1 are our 0 and mean, and has no 0.6",
    )
