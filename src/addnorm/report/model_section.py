"""The section on model, training and data of a run, from its config and arrangement."""

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.corpus import Corpus
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.html_figure import diagram_figure
from addnorm.report.diagram.label_text import format_formula
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.html.page import Column, Facts, Note, Part, Section
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
    """Return the wiring's call string, that of the decoder if there are two; empty if unknown."""
    return str(config.get("wiring") or _find_key(arrangement, "wiring") or "")


def build_model_section(config: Mapping[str, Any], arrangement: Mapping[str, Any]) -> Section:
    """Return the section on model, training and data.

    Args:
        config: content of `config.yaml`
        arrangement: content of `arrangement.json`
    """
    wiring = find_wiring(config, arrangement)
    encoder = str(config.get("encoder_wiring") or wiring)
    model = {"task": config.get("task"), "wiring": wiring, "formula": _formula(wiring)}
    if encoder != wiring:
        model["encoder formula"] = _formula(encoder)
    model["norm"] = config.get("norm") or _find_key(arrangement, "norm")
    model |= {name: config[name] for name in MODEL_KEYS if name in config}
    training = {name: config[name] for name in TRAINING_KEYS if name in config}
    facts = Column(
        (Facts("Model", _format_values(model)), Facts("Training", _format_values(training)))
    )
    diagram_and_data = Column((*_draw_blocks(config, wiring, encoder), _data(config)))
    return Section("Model, training and data", (facts, diagram_and_data))


def _formula(call: str) -> str:
    """Return the formula of a wiring; empty if it is not registered in this installation."""
    try:
        return format_formula(wirings.card(wirings.resolve(call).name).formula) if call else ""
    except UserError:
        return ""


def _draw_blocks(config: Mapping[str, Any], wiring: str, encoder: str) -> list[Part]:
    """Return the diagram of each stack; empty if one cannot be drawn."""
    depth = int(config.get("depth") or 6)
    stacks = [(wiring, False, depth)]
    task = config.get("task")
    if task in tasks and tasks.member(str(task)).is_encoder_decoder:
        encoder_depth = int(config.get("encoder_depth") or depth)
        stacks = [(encoder, False, encoder_depth), (wiring, True, depth)]
    try:
        diagrams = [
            compute_layout(build_block_diagram(call, decoder=is_decoder, depth=stack_depth))
            for call, is_decoder, stack_depth in stacks
        ]
    except UserError:
        return []
    title = "Encoder and decoder blocks" if len(diagrams) > 1 else "Block diagram"
    return [diagram_figure(title, diagrams)]


def _data(config: Mapping[str, Any]) -> Part:
    """Return the facts of the corpus, if its folder still exists."""
    folder = str(config.get("data") or "")
    if not folder:
        return Note("Data: not named in the config.")
    facts: dict[str, Any] = {"corpus": folder}
    if not Path(folder).exists():
        return Facts("Data", facts | {"details": "the corpus folder no longer exists"})
    try:
        corpus = Corpus.open(folder)
    except UserError as error:
        return Facts("Data", facts | {"details": str(error)})
    facts |= {split: f"{count:,} records" for split, count in corpus.counts.items()}
    facts |= {"labels": list(corpus.labels)} if corpus.labels else {}
    return Facts("Data", _format_values(facts | corpus.about))


def _find_key(tree: Any, key: str) -> Any:
    """Return the first non-empty value of a key at any depth of nested mappings."""
    if not isinstance(tree, Mapping):
        return None
    if key in tree:
        return tree[key]
    return next((v for v in (_find_key(each, key) for each in tree.values()) if v), None)


def _format_values(values: Mapping[str, Any]) -> dict[str, str]:
    """Format names and values as text; nested keys are joined, empty values dropped."""
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
