"""Data, held-out examples and baseline shared by all cells of a comparison."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from addnorm.comparison import layout as files
from addnorm.core.files import read_json, write_json


@dataclass(frozen=True)
class SharedData:
    """Facts that are equal for all cells, stored in `facts.json`."""

    data: str
    """Folder of the data that cells train on."""
    corpus: str
    """Digest of the data."""
    tokenizer: str
    """Digest of the tokenizer; empty for tables."""
    vocab: int
    baseline: float
    """Validation loss of an input-independent model; see `Task.baseline_description`."""
    counts: dict[str, int]
    """Number of records in each split."""
    machine: dict[str, str]
    versions: dict[str, str]
    about: dict[str, str] = field(default_factory=dict)
    """Further facts for the report, by label."""

    @classmethod
    def read(cls, folder: Path) -> "SharedData | None":
        """Read the facts of a comparison's folder; return None if the data are not prepared."""
        facts = read_json(folder / files.FACTS)
        return None if facts is None else cls(**facts)

    def save(self, folder: Path) -> None:
        """Write `facts.json`, which marks the data as prepared."""
        write_json(folder / files.FACTS, asdict(self))
