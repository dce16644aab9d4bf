"""What all cells of a comparison stand on: data, what to answer, and a baseline."""

import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from addnorm import __version__
from addnorm.comparison import layout as files
from addnorm.comparison.spec import Comparison


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
        facts = files.read_json(folder / files.FACTS)
        return None if facts is None else cls(**facts)

    def save(self, folder: Path) -> None:
        """Write it; from then on the comparison is prepared."""
        files.write_json(folder / files.FACTS, asdict(self))


def prepare(spec: Comparison, folder: Path) -> SharedData:
    """Make what is not there yet: the data, the tokenizer, the records to be answered."""
    from addnorm.comparison.tasks import get_task  # a task makes a ground

    return get_task(spec.task).prepare(spec, folder)


def check_data(spec: Comparison) -> None:
    """Refuse data that cannot be compared on, before any folder is made."""
    from addnorm.comparison.tasks import get_task

    get_task(spec.task).check_data(spec)


def versions() -> dict[str, str]:
    """The code that makes the numbers."""
    return {
        "addnorm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def machine() -> dict[str, str]:
    """What the numbers are made on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "device": device,
    }


def _processor() -> str:
    """The name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())
