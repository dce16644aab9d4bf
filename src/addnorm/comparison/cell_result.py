"""Result of a finished cell, stored as JSON beside the folder of its run."""

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import read_json, write_json

RESULT_SUFFIX, ERROR_SUFFIX, LOG_SUFFIX = "json", "error", "log"
"""Suffixes of the files beside `cells/NAME`: the result, a traceback, the captured output."""


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

    def save(self, folder: Path) -> None:
        """Write the result beside the folder of the run, which marks the cell as finished."""
        write_json(sidecar_path(folder, RESULT_SUFFIX), asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "CellResult | None":
        """Read the result of a cell; return None if the cell is not finished."""
        path = sidecar_path(folder, RESULT_SUFFIX)
        data = read_json(path)
        if data is None:
            return None
        if not isinstance(data, dict) or set(data) != {each.name for each in fields(cls)}:
            raise UserError(
                f"{path} is not the result of a cell; remove it and rerun the same "
                "`addnorm compare` command"
            )
        # JSON has no NaN: numbers that were not finite are stored as null.
        numbers = {
            name: math.nan for name in ("loss", "lowest", "rate", "recent") if data[name] is None
        }
        scores = {name: value for name, value in data["scores"].items() if value is not None}
        return cls(**data | numbers | {"samples": tuple(data["samples"]), "scores": scores})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)
