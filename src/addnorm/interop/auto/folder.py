"""Files of a saved folder beside config and weights: loader for remote code, card, drawing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from addnorm.core.files import atomic_write
from addnorm.interop.auto.card import DRAWING_FILE, draw_config, make_model_card
from addnorm.interop.auto.config import REMOTE_MODULE
from addnorm.models import Model

CARD_FILE = "README.md"
REMOTE_CODE = '''\
"""Loads the model with the installed package: pip install addnorm."""

from addnorm.interop import AddnormConfig, {class_name}
'''


def write_extra_files(
    model: Model,
    folder: Path,
    *,
    class_name: str,
    auto_class: str,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write the loader, and card and drawing unless the folder has a card.

    Args:
        model: addnorm model
        folder: output folder
        class_name: class that loads the model
        auto_class: its Auto class
        facts: further sections of the card; an existing card is replaced if given
    """
    _write(folder / f"{REMOTE_MODULE}.py", REMOTE_CODE.format(class_name=class_name))
    if facts is not None or not (folder / CARD_FILE).exists():
        write_card(model, folder, auto_class, facts)


def write_card(
    model: Model,
    folder: Path,
    auto_class: str,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    stock_class: str | None = None,
) -> None:
    """Write the model card and the drawing; see `make_model_card`."""
    _write(folder / DRAWING_FILE, draw_config(model.config))
    card = make_model_card(model, auto_class, facts, stock_class=stock_class)
    _write(folder / CARD_FILE, card)


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
