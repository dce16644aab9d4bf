"""`addnorm.load`: models from every kind of folder that holds one."""

from pathlib import Path
from typing import Any

from addnorm import models
from addnorm.core.validation import check_path
from addnorm.models import Config
from addnorm.models.wrapped_folder import load_wrapped_model, read_hf_config
from addnorm.train.checkpoint import STATE_FILE
from addnorm.train.run_folder import CONFIG as RUN_CONFIG
from addnorm.train.trained_run import load_run_model


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
    values = read_hf_config(path)
    if values is None:
        return models.load(path)
    if values["model_type"] == Config.model_type:
        return load_wrapped_model(path, values)
    from addnorm.interop import load_hf  # imports transformers

    return load_hf(path)
