"""Report of an export, stored as `export.json` in the exported folder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from addnorm.core.errors import UserError
from addnorm.core.files import check_file, file_checksum, read_json_and_files, write_json

Grade = Literal["exact", "rounding", "approximate"]
GRADES: tuple[Grade, ...] = ("exact", "rounding", "approximate")
"""exact: equal in real arithmetic; rounding: differs by less than float32 rounding; approximate:
differs by more, as with int8 weights, and only on request."""

EXPORT_FILE, TOKENIZER_FILE = "export.json", "tokenizer.json"
FORMAT = 1
HINT = "export the model again"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Comparison of the exported model, reopened by its engine, with the original."""

    inputs: str
    """Where the inputs come from, such as `valid split of data/demo`."""
    sequences: int
    """Number of sequences, images or rows."""
    max_error: float
    """Largest absolute difference of logits, log-probabilities or predictions."""
    tolerance: float
    """Largest difference that is accepted."""
    greedy: tuple[int, int] | None = None
    """Identical greedy outputs, of how many; None if the model generates nothing."""
    beam: tuple[int, int] | None = None
    """Identical outputs of beam search, likewise."""
    labels: tuple[int, int] | None = None
    """Identical predicted classes, likewise, for classifiers."""
    scores: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Metrics of the original and of the exported model by name, such as bleu."""


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was exported, how exactly, and how it was checked.

    >>> report = ExportReport(
    ...     target="onnx", grade="exact", form="post_ln", arrangement="deepnorm", kind="lm",
    ...     notes=("deepnorm: skip scale carried in the stream",),
    ...     proof=Proof(inputs="random tokens", sequences=8, max_error=1e-6, tolerance=1e-4),
    ... )
    >>> report.max_error
    1e-06
    """

    target: str
    """Name of the target, the value of --to."""
    grade: Grade
    """How closely the exported model equals the original; see `GRADES`."""
    form: str
    """What the files hold: a plain form such as `post_ln`, a class of transformers, ..."""
    arrangement: str
    """Wiring of the original, as a call string."""
    kind: str
    """Kind of the model, as in `Config`; `table` for an estimator."""
    notes: tuple[str, ...] = ()
    """What was rewritten, and what the exported model cannot do."""
    proof: Proof
    """Comparison with the original."""
    task: str | None = None
    """Task of the run; None for a model without one."""
    labels: tuple[str, ...] = ()
    """Class names in the order of the logits."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the run's recipe that inference uses."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Config of the original model."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the target needs to open its files."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of the software that wrote the files."""
    folder: Path = field(default=Path(), compare=False)
    """The exported folder; not stored."""

    @property
    def max_error(self) -> float:
        """Largest absolute difference from the original on the inputs of the proof."""
        return self.proof.max_error

    def write(self, folder: Path) -> None:
        """Write `export.json` with the checksums of all other files of the folder."""
        files = sorted(path for path in folder.iterdir() if path.is_file())
        checksums = {path.name: file_checksum(path) for path in files}
        data = asdict(self) | {"format": FORMAT}
        del data["folder"]
        write_json(folder / EXPORT_FILE, data, files=checksums)

    @classmethod
    def read(cls, folder: Path) -> "ExportReport":
        """Read `export.json` and verify the checksums of the files that it lists.

        Raises:
            UserError: it is missing, damaged or of another version, or a file has changed
        """
        path = folder / EXPORT_FILE
        if not path.is_file():
            raise UserError(f"expected a folder written by `addnorm export`, got {folder}")
        data, checksums = read_json_and_files(path, hint=HINT)
        names = {each.name for each in fields(cls)} - {"folder"}
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT or set(data) != names:
            raise UserError(f"{path}: expected an export of format {FORMAT}; {HINT}")
        for name, checksum in checksums.items():
            check_file(folder / name, checksum, hint=HINT)
        try:
            proof = Proof(**{name: _as_tuple(each) for name, each in data.pop("proof").items()})
            values = {name: _as_tuple(each) for name, each in data.items()}
            return cls(**values, proof=proof, folder=folder)
        except (TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error}); {HINT}") from None


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def worst_grade(*grades: Grade) -> Grade:
    """Return the least exact of some grades.

    >>> worst_grade("exact", "approximate", "rounding")
    'approximate'
    """
    return max(grades, key=GRADES.index)


def is_export(folder: Path) -> bool:
    """Return whether a folder was written by `addnorm export`."""
    return (folder / EXPORT_FILE).is_file()
