"""How a cell ended: plain data beside the folder of its run."""

import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import read_json, write_json

RESULT_SUFFIX, ERROR_SUFFIX, LOG_SUFFIX = "json", "error", "log"
"""Beside `cells/NAME`, the folder of a cell's run: how it ended, a traceback, what it printed."""


def sidecar_path(folder: Path, suffix: str) -> Path:
    """A file beside the folder of a cell: `cells/NAME.json`."""
    return folder.with_name(f"{folder.name}.{suffix}")


@dataclass(frozen=True)
class CellResult:
    """What is known of a cell that has ended, well or not."""

    ending: str
    """done, diverged, crashed, or cut (by halving)."""
    why: str = ""
    """The reason in words, where it is not done."""
    step: int = 0
    """Updates done."""
    loss: float = math.nan
    """Validation loss at the end."""
    lowest: float = math.nan
    """The lowest loss it ever had; see judge.Course."""
    scores: dict[str, float] = field(default_factory=dict)
    """Scores of the task on the records that all cells answer."""
    samples: tuple[str, ...] = ()
    """Answers to the first of these records."""
    tokens: int = 0
    seconds: float = 0.0
    """Time of the training, over all sittings."""
    rate: float = math.nan
    """Tokens a second of processor time, the median over steps; of time, on a GPU."""
    memory: int = 0
    """Bytes that the training took at most, beyond an idle process."""
    parameters: int = 0

    def save(self, folder: Path) -> None:
        """Write it beside the folder of the cell's run; from then on the cell is finished."""
        write_json(sidecar_path(folder, RESULT_SUFFIX), asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "CellResult | None":
        """The end of a cell; None if it has not come yet."""
        plain = read_json(sidecar_path(folder, RESULT_SUFFIX))
        if plain is None:
            return None
        if not isinstance(plain, dict) or set(plain) != {each.name for each in fields(cls)}:
            raise UserError(
                f"{sidecar_path(folder, RESULT_SUFFIX)} does not tell how a cell ended; remove it, and give the "
                "command of `addnorm compare` again"
            )
        numbers = {name: math.nan for name in ("loss", "lowest", "rate") if plain[name] is None}
        scores = {name: value for name, value in plain["scores"].items() if value is not None}
        return cls(**plain | numbers | {"samples": tuple(plain["samples"]), "scores": scores})

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
