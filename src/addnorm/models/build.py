"""Construction of models from a preset, a config or keyword arguments."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.core.validation import check_memory, check_path
from addnorm.models.base import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Model,
    check_weights,
    load_weights,
    read_weights,
)
from addnorm.models.classifier import Classifier
from addnorm.models.config import Config
from addnorm.models.language import LanguageModel, MaskedLM, PrefixLM
from addnorm.models.presets import PRESETS
from addnorm.models.seq2seq import Seq2Seq

MODELS: dict[str, type[Model]] = {
    "lm": LanguageModel,
    "prefix_lm": PrefixLM,
    "masked_lm": MaskedLM,
    "seq2seq": Seq2Seq,
    "classifier": Classifier,
}


def build(
    what: str | Config | None = None,
    *,
    device: str | torch.device | None = None,
    seed: int | None = None,
    **overrides: Any,
) -> Model:
    """Build a model.

    Args:
        what: name of a preset, or a `Config`; None builds from the overrides alone
        device: device of the model; "meta" allocates nothing, and
            `model.to_empty(device=...).init_weights()` allocates and initializes it later
        seed: seed of the initialization; PyTorch's generator is used if None
        **overrides: fields of the config to change

    >>> model = build("gpt2", depth=2, dim=64, heads=4, vocab=100, wiring="deepnorm")
    >>> model.config.wiring, model.config.positions
    ('deepnorm', 'learned(length=1024)')
    """
    if what is None:
        config = Config(**overrides)
    elif isinstance(what, str):
        config = PRESETS[what].config.replace(**overrides)
    elif isinstance(what, Config):
        config = what.replace(**overrides)
    else:
        raise UserError(f"what: expected the name of a preset or a Config, got {what!r}")
    with torch.device("meta"):  # so that weights are initialized once, by init_weights
        model = MODELS[config.kind](config)
    device = _parse_device(device)
    if device.type == "cpu":
        check_memory("build", sum(each.numel() * each.itemsize for each in model.parameters()))
    return model if device.type == "meta" else model.to_empty(device=device).init_weights(seed=seed)


def _parse_device(device: Any) -> torch.device:
    try:
        return torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError, ValueError):
        raise UserError(
            f'device: expected a device such as "cpu", "cuda:0" or "meta", got {device!r}'
        ) from None


def load(folder: str | Path) -> Model:
    """Load a model and its weights from a folder that `Model.save` wrote.

    Raises:
        UserError: a file is missing, damaged or changed, or config and weights do not fit
    """
    check_path("folder", folder)
    config = Config.from_json(Path(folder) / CONFIG_FILE)
    return build_with_weights(config, read_weights(folder), source=Path(folder) / WEIGHTS_FILE)


def build_with_weights(config: Config, weights: dict[str, Tensor], *, source: Path | str) -> Model:
    """Build a model with given weights; see `load_weights`.

    Sizes are compared before a model is allocated: a changed config may describe any number of
    parameters.
    """
    if config.depth > len(weights) or (config.encoder_depth or 0) > len(weights):
        raise UserError(
            f"{source} does not fit the model: expected {config.depth} layers, got {len(weights)} "
            "tensors; use the config that it was saved with"
        )
    try:
        check_weights(build(config, device="meta"), weights, source=source)
    except (RuntimeError, OverflowError, MemoryError) as error:  # sizes beyond all limits
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{source} does not fit the model: {reason}") from None
    model = build(config)
    load_weights(model, weights, source=source)
    return model
