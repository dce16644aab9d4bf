"""What was trained, in facts and a drawing: from the config and arrangement of a run."""

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.corpus import Corpus
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.svg import render_svg
from addnorm.report.diagram.symbols import format_formula
from addnorm.report.html.page import Column, Facts, Figure, Note, Part, Section
from addnorm.tasks import registry as tasks
from addnorm.wirings.base import registry as wirings

MODEL_KEYS = (
    *("dim", "depth", "encoder_depth", "heads", "ffn_dim", "activation", "positions", "qk_norm"),
    *("table_norm", "embed_norm", "dropout", "attention_dropout", "tied"),
)
TRAINING_KEYS = (
    *("steps", "batch_tokens", "accumulate", "optimizer", "lr", "schedule", "weight_decay", "clip"),
    *("label_smoothing", "ema", "dtype", "seed", "tokenizer", "vocab", "max_length", "on_spike"),
)


def find_wiring(config: Mapping[str, Any], arrangement: Mapping[str, Any]) -> str:
    """The call string of the wiring, of the decoder's where there are two; empty if unknown."""
    return str(config.get("wiring") or _find_key(arrangement, "wiring") or "")


def model_section(config: Mapping[str, Any], arrangement: Mapping[str, Any]) -> Section:
    """The section on model, training and data."""
    wiring = find_wiring(config, arrangement)
    encoder = str(config.get("encoder_wiring") or wiring)
    norm = config.get("norm") or _find_key(arrangement, "norm")
    model = {"task": config.get("task"), "wiring": wiring}
    for key, call in (("formula", wiring), ("encoder", encoder if encoder != wiring else "")):
        model |= _formula(key, call)
    model |= {"norm": norm} | {name: config[name] for name in MODEL_KEYS if name in config}
    training = {name: config[name] for name in TRAINING_KEYS if name in config}
    told = Column(
        (Facts("Model", _format_values(model)), Facts("Training", _format_values(training)))
    )
    shown = Column((*_draw_blocks(config, wiring, encoder), _data(config)))
    return Section("What was trained", (told, shown))


def _formula(key: str, call: str) -> dict[str, str]:
    """The wiring's formula; nothing for a wiring that is not known here."""
    try:
        return (
            {key: format_formula(wirings.card(wirings.resolve(call).name).formula)} if call else {}
        )
    except UserError:
        return {}


def _draw_blocks(config: Mapping[str, Any], wiring: str, encoder: str) -> list[Part]:
    """The block of each stack; nothing for what cannot be drawn."""
    depth = int(config.get("depth") or 6)
    wanted = [(wiring, False, depth)]
    task = config.get("task")
    if task in tasks and tasks.member(str(task)).is_encoder_decoder:
        wanted = [
            (encoder, False, int(config.get("encoder_depth") or depth)),
            (wiring, True, depth),
        ]
    try:
        made = [
            compute_layout(build_block_diagram(call, decoder=two, depth=layers))
            for call, two, layers in wanted
        ]
    except UserError:
        return []
    named = "The blocks of encoder and decoder" if len(made) > 1 else "The block"
    return [Figure(named, render_svg(made, theme="light"), render_svg(made, theme="dark"))]


def _data(config: Mapping[str, Any]) -> Part:
    """What the corpus says of itself, where it still is."""
    folder = str(config.get("data") or "")
    if not folder:
        return Note("Data: the config names none.")
    facts: dict[str, Any] = {"corpus": folder}
    try:
        corpus = Corpus.open(folder)
    except (UserError, OSError):
        return Facts("Data", facts | {"facts": "the corpus is no longer there"})
    facts |= {split: f"{count:,} records" for split, count in corpus.counts.items()}
    facts |= {"labels": list(corpus.labels)} if corpus.labels else {}
    return Facts("Data", _format_values(facts | corpus.about))


def _find_key(tree: Any, key: str) -> Any:
    """The first value of a key, at any depth."""
    if not isinstance(tree, Mapping):
        return None
    if key in tree:
        return tree[key]
    return next((v for v in (_find_key(each, key) for each in tree.values()) if v), None)


def _format_values(values: Mapping[str, Any]) -> dict[str, str]:
    """Names and values for the eye; what stands inside others gets both names."""
    return dict(chain.from_iterable(_flatten(str(k), v) for k, v in values.items()))


def _flatten(name: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for inner, each in value.items():
            yield from _flatten(f"{name} {inner}", each)
    elif isinstance(value, bool):
        yield name.replace("_", " "), "yes" if value else "no"
    elif isinstance(value, int) and name not in ("seed", "year"):
        yield name.replace("_", " "), f"{value:,}"
    elif isinstance(value, float):
        yield name.replace("_", " "), f"{value:g}" if math.isfinite(value) else str(value)
    elif isinstance(value, list | tuple):
        yield name.replace("_", " "), ", ".join(map(str, value))
    elif value not in (None, ""):
        yield name.replace("_", " "), str(value)
