"""Result of a finished cell, stored as JSON beside the folder of its run."""

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.files import (
    check_file,
    file_checksum,
    read_json,
    read_json_and_files,
    write_json,
)
from addnorm.core.validation import parse_dataclass

RESULT_SUFFIX, ERROR_SUFFIX, LOG_SUFFIX = "json", "error", "log"
"""Suffixes of the files beside `cells/NAME`: the result, a traceback, the captured output."""
ENDINGS = ("done", "diverged", "stopped", "crashed", "cut")


def sidecar_path(folder: Path, suffix: str) -> Path:
    """Return the path of a file beside the folder of a cell, such as `cells/NAME.json`."""
    return folder.with_name(f"{folder.name}.{suffix}")


@dataclass(frozen=True)
class CellResult:
    """Outcome of one cell. Whether the cell counts as trained depends on all cells; see `Study`."""

    ending: str
    """done, diverged, crashed, or cut (by halving)."""
    why: str = ""
    """Reason, if `ending` is not done."""
    step: int = 0
    """Optimizer steps done."""
    loss: float = math.nan
    """Final validation loss."""
    lowest: float = math.nan
    """Lowest loss of the run; see `outcomes.LossSummary`."""
    scores: dict[str, float] = field(default_factory=dict)
    """Scores on the held-out examples, by metric."""
    samples: tuple[str, ...] = ()
    """Outputs for the first held-out examples."""
    tokens: int = 0
    seconds: float = 0.0
    """Training time, summed over all resumed sessions."""
    rate: float = math.nan
    """Tokens per second: the median over steps, in process time (in wall time on a GPU)."""
    memory: int = 0
    """Peak memory of the training in bytes, without the memory of the idle process."""
    parameters: int = 0
    recent: float = math.nan
    """Mean training loss over the last tenth of the run."""

    def save(self, folder: Path, *, rows: str | None = None) -> None:
        """Write the result beside the folder of the run, which marks the cell as finished.

        Args:
            folder: the folder of the run
            rows: name of the file of rows in it, whose checksum is stored; None stores none
        """
        checksums = {}
        if rows is not None and (folder / rows).is_file():
            checksums[rows] = file_checksum(folder / rows)
        write_json(sidecar_path(folder, RESULT_SUFFIX), asdict(self), files=checksums)

    @classmethod
    def read(cls, folder: Path) -> "CellResult | None":
        """Read the result of a cell; return None if the cell is not finished."""
        path = sidecar_path(folder, RESULT_SUFFIX)
        hint = "remove it and rerun the same `addnorm compare` command"
        data = read_json(path, hint=hint)
        if data is None:
            return None
        if not isinstance(data, dict) or set(data) != {each.name for each in fields(cls)}:
            raise UserError(f"{path} is not the result of a cell; {hint}")
        # JSON has no NaN: numbers that were not finite are stored as null.
        numbers = {
            name: math.nan for name in ("loss", "lowest", "rate", "recent") if data[name] is None
        }
        if isinstance(data["scores"], dict):
            scores = {name: value for name, value in data["scores"].items() if value is not None}
            data |= {"scores": scores}
        try:
            result = parse_dataclass(cls, data | numbers, str(path))
        except UserError as error:
            raise UserError(f"{error}; {hint}") from None
        if result.ending not in ENDINGS:
            message = unknown_name_message("ending", result.ending, ENDINGS)
            raise UserError(f"{path}: {message}; {hint}")
        return result

    @staticmethod
    def check_rows(folder: Path, rows: str) -> None:
        """Raise `UserError` if the rows of a finished cell have changed since it ended."""
        _, checksums = read_json_and_files(sidecar_path(folder, RESULT_SUFFIX))
        if rows in checksums:
            check_file(folder / rows, checksums[rows], hint="restore it, or train the cell again")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)
