"""Software versions and machine, stored beside every result."""

import platform
from pathlib import Path

import torch

from addnorm import __version__


def collect_versions() -> dict[str, str]:
    """Return the versions of addnorm, torch and Python."""
    return {
        "addnorm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def describe_machine() -> dict[str, str]:
    """Return the operating system, the processor and the GPU (or `CPU`)."""
    return {
        "system": platform.platform(),
        "processor": _processor_name(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
    }


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
