"""What all cells of a comparison stand on: data, what to answer, and a baseline."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from addnorm.comparison import layout as files
from addnorm.comparison.spec import Comparison
from addnorm.core.files import read_json, write_json


@dataclass(frozen=True)
class SharedData:
    """Facts that are the same for every cell, kept as `facts.json`."""

    data: str
    corpus: str
    """What tells the data from others."""
    tokenizer: str
    """What tells the tokenizer from others; empty where there is none."""
    vocab: int
    baseline: float
    """Loss on the valid part of a model that knows nothing; see `Task.ignorant`."""
    counts: dict[str, int]
    machine: dict[str, str]
    versions: dict[str, str]
    about: dict[str, str] = field(default_factory=dict)
    """What else a reader should know."""

    @classmethod
    def read(cls, folder: Path) -> "SharedData | None":
        """The ground of a comparison that was prepared before."""
        facts = read_json(folder / files.FACTS)
        return None if facts is None else cls(**facts)

    def save(self, folder: Path) -> None:
        """Write it; from then on the comparison is prepared."""
        write_json(folder / files.FACTS, asdict(self))


def prepare(spec: Comparison, folder: Path) -> SharedData:
    """Make what is not there yet: the data, the tokenizer, the records to be answered."""
    from addnorm.comparison.tasks import get_task  # a task makes a ground

    return get_task(spec.task).prepare(spec, folder)


def check_data(spec: Comparison) -> None:
    """Refuse data that cannot be compared on, before any folder is made."""
    from addnorm.comparison.tasks import get_task

    get_task(spec.task).check_data(spec)
