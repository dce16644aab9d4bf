"""Data, held-out examples and baseline shared by all cells of a comparison."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from addnorm.comparison import folder_layout as files
from addnorm.core.errors import UserError
from addnorm.core.files import read_json, write_json
from addnorm.core.validation import parse_dataclass


@dataclass(frozen=True)
class SharedData:
    """Facts that are equal for all cells, stored in `facts.json`."""

    data: str
    """Folder of the data that cells train on."""
    corpus: str
    """Digest of the data; empty if the task does not know them."""
    tokenizer: str
    """Digest of the tokenizer; empty for tables."""
    vocab: int
    baseline: float
    """Validation loss of an input-independent model; see `Task.baseline_description`. NaN if it is
    estimated from the cells, which `Study` does."""
    counts: dict[str, int]
    """Number of records in each split."""
    machine: dict[str, str]
    versions: dict[str, str]
    about: dict[str, str] = field(default_factory=dict)
    """Further facts for the report, by label."""
    plugins: dict[str, str] = field(default_factory=dict)
    """Digest of each plugin that the comparison uses, by name."""

    @classmethod
    def read(cls, folder: Path) -> "SharedData | None":
        """Read the facts of a comparison's folder; return None if the data are not prepared."""
        path = folder / files.FACTS
        hint = "restore it, or start again in another folder"
        facts = read_json(path, hint=hint)
        if facts is None:
            return None
        if isinstance(facts, dict) and facts.get("baseline", 0.0) is None:
            facts |= {"baseline": math.nan}  # JSON has no NaN
        try:
            return parse_dataclass(cls, facts, str(path))
        except UserError as error:
            raise UserError(f"{error}; {hint}") from None

    def save(self, folder: Path) -> None:
        """Write `facts.json`, which marks the data as prepared."""
        write_json(folder / files.FACTS, asdict(self))
