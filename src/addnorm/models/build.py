"""Models by name: from a preset, a config, or plain keywords."""

from pathlib import Path
from typing import Any

import torch

from addnorm.core.errors import UserError
from addnorm.models.base import CONFIG_FILE, Model
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
    """A model of a preset, of a config, or of keywords alone; overrides change single fields.

    With device="meta" nothing is allocated; `model.to_empty(device=...).initialise()` makes it
    real.

    >>> model = build("gpt2", depth=2, dim=64, heads=4, vocab=100, wiring="deepnorm")
    >>> model.config.wiring, model.config.positions
    ('deepnorm', 'learned(length=1024)')
    """
    if what is None:
        config = Config.from_kwargs(**overrides)
    elif isinstance(what, str):
        config = PRESETS[what].config.replace(**overrides)
    elif isinstance(what, Config):
        config = what.replace(**overrides)
    else:
        raise UserError(f"wanted the name of a preset or a Config, got {what!r}")
    with torch.device("meta"):  # so that weights are drawn once, not twice
        model = MODELS[config.kind](config)
    device = torch.device(device or "cpu")
    return model if device.type == "meta" else model.to_empty(device=device).init_weights(seed=seed)


def load(folder: str | Path) -> Model:
    """A model that was saved, with its weights."""
    return build(Config.from_json(Path(folder) / CONFIG_FILE)).load(folder)
