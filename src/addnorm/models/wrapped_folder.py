"""Folders that `save_pretrained` of an addnorm class wrote, read without transformers."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.core.files import read_json
from addnorm.models.base import CONFIG_FILE, WEIGHTS_FILE, Model
from addnorm.models.build import build_with_weights
from addnorm.models.config import Config

WEIGHTS_INDEX = "model.safetensors.index.json"
"""Index of weights that transformers saved in several files."""
WRAPPED_PREFIX = "model."
"""Prefix of the weights in the classes of `addnorm.interop.auto`."""


def read_hf_config(folder: Path) -> dict[str, Any] | None:
    """Return the config of a folder of transformers; None for any other folder."""
    values = read_json(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else None
    return values if isinstance(values, dict) and "model_type" in values else None


def load_wrapped_model(folder: Path, values: dict[str, Any]) -> Model:
    """Load the addnorm model of a folder with the config `values`."""
    config = Config.from_dict(values.get("model", {}))
    return build_with_weights(config, _read_weights(folder), source=folder)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of an addnorm model that transformers saved."""
    index = read_json(folder / WEIGHTS_INDEX) if (folder / WEIGHTS_INDEX).is_file() else {}
    names = sorted(set(index.get("weight_map", {}).values())) or [WEIGHTS_FILE]
    weights: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{folder}: expected the weights {name}, got none")
        weights |= load_file(folder / name)
    return {name.removeprefix(WRAPPED_PREFIX): value for name, value in weights.items()}
