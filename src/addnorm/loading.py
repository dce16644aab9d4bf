"""`addnorm.load`: models from every kind of folder that holds one."""

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from addnorm import models
from addnorm.core.errors import UserError
from addnorm.core.files import read_json
from addnorm.core.validation import check_path
from addnorm.models import Config
from addnorm.models.base import CONFIG_FILE, WEIGHTS_FILE
from addnorm.models.build import build_with_weights
from addnorm.train.checkpoint import STATE_FILE
from addnorm.train.run_folder import CONFIG as RUN_CONFIG
from addnorm.train.trained_run import load_run_model

WEIGHTS_INDEX = "model.safetensors.index.json"
"""Index of weights that transformers saved in several files."""
WRAPPED_PREFIX = "model."
"""Prefix of the weights in the classes of `addnorm.interop.auto`."""


def load(folder: str | Path) -> Any:
    """Load a model from a folder.

    | folder | result |
    |---|---|
    | written by `model.save` | the model |
    | run of `addnorm train` | model of its best checkpoint, in evaluation mode |
    | `checkpoints/step-N` of a run | model of this checkpoint, in evaluation mode |
    | `save_pretrained` of an addnorm class | the addnorm model |
    | any other Hugging Face model | as `from_hf` returns it |

    Raises:
        UserError: a file is missing, damaged or changed, or config and weights do not fit
    """
    check_path("folder", folder)
    path = Path(folder)
    if (path / RUN_CONFIG).is_file() or (path / STATE_FILE).is_file():
        return load_run_model(path)
    values = read_json(path / CONFIG_FILE) if (path / CONFIG_FILE).is_file() else None
    if not isinstance(values, dict) or "model_type" not in values:
        return models.load(path)
    if values["model_type"] == Config.model_type:
        config = Config.from_dict(values.get("model", {}))
        return build_with_weights(config, _read_wrapped_weights(path), source=path)
    from addnorm.interop import load_hf  # imports transformers

    return load_hf(path)


def _read_wrapped_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights of an addnorm model that transformers saved."""
    index = read_json(folder / WEIGHTS_INDEX) if (folder / WEIGHTS_INDEX).is_file() else {}
    names = sorted(set(index.get("weight_map", {}).values())) or [WEIGHTS_FILE]
    weights: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{folder}: expected the weights {name}, got none")
        weights |= load_file(folder / name)
    return {name.removeprefix(WRAPPED_PREFIX): value for name, value in weights.items()}
