"""Versions, processors and optional packages, as text for a bug report."""

import os
import platform
from importlib import metadata

import torch

from addnorm import __version__
from addnorm.kernels.library import get_availability

OPTIONAL_PACKAGES = (
    *("transformers", "scikit-learn", "pandas", "pyarrow", "ray", "onnx", "onnxruntime"),
    *("ctranslate2", "lightning", "accelerate", "peft", "liger-kernel", "triton"),
)


def describe_environment() -> dict[str, str]:
    """Return what matters for a bug report, by name."""
    native = get_availability()
    return {
        "addnorm": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processors": f"{os.cpu_count()}, {torch.get_num_threads()} threads in torch",
        "devices": ", ".join(_list_devices()) or "none but the CPU",
        "native kernels": native.level or f"not used: {native.reason}",
        "optional packages": ", ".join(_list_packages()) or "none",
    }


def _list_devices() -> list[str]:
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return names + (["mps"] if torch.backends.mps.is_available() else [])


def _list_packages() -> list[str]:
    found = []
    for name in OPTIONAL_PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return found
