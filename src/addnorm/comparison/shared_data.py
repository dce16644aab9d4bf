"""Data, held-out examples and baseline shared by all cells of a comparison."""

import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from addnorm import __version__
from addnorm.comparison import layout as files


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
        facts = files.read_json(folder / files.FACTS)
        return None if facts is None else cls(**facts)

    def save(self, folder: Path) -> None:
        """Write `facts.json`, which marks the data as prepared."""
        files.write_json(folder / files.FACTS, asdict(self))


def versions() -> dict[str, str]:
    """Return the versions of addnorm, torch and Python."""
    return {
        "addnorm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def machine() -> dict[str, str]:
    """Return the operating system, processor and device."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "device": device,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
