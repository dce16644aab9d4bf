"""Conversion of a plain model to a stock class of transformers.

The classes are tried in the order of `STOCK_CLASSES`. For each, the config of transformers is
written and read back by the family's own reader, the model is rewritten for the config that was
read (`widen`), and the outputs of both are compared. The first class that succeeds is taken.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, PAD, START, UNKNOWN
from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.family import FAMILIES, PositionNumbering
from addnorm.interop.hf import build_config
from addnorm.interop.stock.classes import (
    MAX_LENGTH,
    STOCK_CLASSES,
    Facts,
    StockClass,
    stock_kind,
)
from addnorm.interop.stock.widen import StockMismatchError, widen
from addnorm.interop.transformers_compat import transformers_library
from addnorm.interop.weight_mapping import WeightMapper
from addnorm.models import Config, Model, Seq2Seq
from addnorm.sublayers.positions import LearnedPositions

TOLERANCE = 1e-9
"""Largest difference of outputs in float64, relative to the largest output."""


@dataclass(frozen=True)
class StockModel:
    """Model of a stock class, ready to be written."""

    name: str
    """The `model_type`."""
    hf_model: Any
    """Model of transformers with the weights."""
    model: Model
    """Our model of the same config, whose outputs it has."""
    numbering: PositionNumbering
    """How the class numbers tokens."""
    notes: tuple[str, ...] = ()
    """What users of the files must know."""


def to_stock(
    model: Model,
    *,
    name: str | None = None,
    end: int = END,
    max_length: int = MAX_LENGTH,
    labels: Sequence[str] = (),
) -> StockModel:
    """Return a plain model as a stock class of transformers with equal outputs.

    Args:
        model: a model in evaluation mode
        name: `model_type` of the class; the first that fits if None
        end: token that ends a text
        max_length: positions to write, unless they are learned
        labels: names of the classes of a classifier

    Raises:
        StockMismatchError: no class, or not the requested one, computes the same
    """
    candidates = [row for row in STOCK_CLASSES.values() if _class_name(row, model.config)]
    if name is not None:
        row = STOCK_CLASSES.get(name)
        if row is None or row not in candidates:
            known = ", ".join(row.name for row in candidates)
            raise UserError(
                f"--as: expected a class for kind {model.config.kind!r} ({known or 'none'}), got "
                f"{name!r}"
            )
        candidates = [row]
    reasons: list[tuple[int, str]] = []
    for row in candidates:
        try:
            return _convert(row, model, end, max_length, labels)
        except StockMismatchError as error:
            reasons.append((error.progress, f"{row.name} has {error}"))
    # Of 30 classes, only those that have most in common with the model are worth mentioning.
    most = max((progress for progress, _ in reasons), default=0)
    closest = [reason for progress, reason in reasons if progress == most]
    if most == 0 and name is None:
        calls = dict.fromkeys(str(stack.wiring_call) for stack in model.stacks)
        closest = [f"none has the wiring {' or '.join(calls)} for kind {model.config.kind!r}"]
    start = "no stock class computes the same" if name is None else "it computes something else"
    raise StockMismatchError(f"{start}: {'; '.join(closest[:3])}", most)


def _class_name(row: StockClass, config: Config) -> str | None:
    return None if config.image is not None else row.classes.get(stock_kind(config))


def _convert(
    row: StockClass, model: Model, end: int, max_length: int, labels: Sequence[str]
) -> StockModel:
    transformers = transformers_library()
    limits = (stack.positions.length for stack in model.stacks)
    lengths = [limit for limit in limits if limit is not None]
    facts = Facts(model.config, min(lengths, default=max_length))
    class_name = _class_name(row, model.config)
    assert class_name is not None
    model_class = getattr(transformers, class_name)
    values = row.write(facts) | {"eos_token_id": end}
    if model.config.classes is not None:
        names = labels or [f"LABEL_{index}" for index in range(model.config.classes)]
        values |= {
            "id2label": dict(enumerate(names)),
            "label2id": {label: index for index, label in enumerate(names)},
        }
    options = _constructor_options(model.config)
    declared = {*model_class.config_class().to_dict(), "id2label", "label2id"}
    try:
        config = model_class.config_class(
            **{name: value for name, value in values.items() if name in declared}
        )
        with torch.device("meta"):
            empty = model_class(config, **options)
    except Exception as error:  # any kind, depending on the class
        reason = " ".join(str(error).split())[:120]
        raise StockMismatchError(f"no such config ({reason})", 0) from None
    exact = copy.deepcopy(model).double()
    family = FAMILIES[row.name]
    variant = family.variants[class_name]
    tensors = dict(empty.state_dict()) | _known_tensors(model, empty)
    reader = ConfigReader(class_name, config.to_dict(), tensors, type(config)().to_dict())
    numbering = family.get_numbering(reader.values)
    try:
        read_config = build_config(family, variant, reader)
        wide = widen(exact, read_config, offset=_first_position(numbering))
    except StockMismatchError:
        raise
    except UserError as error:
        raise StockMismatchError(f"no such config ({error})", 0) from None
    _check_outputs(exact, wide, numbering)
    wide = wide.to(next(model.parameters()).dtype)
    hf_model = model_class(config, **options).to(next(model.parameters()).dtype)
    hf_model.load_state_dict(_their_state(hf_model, wide, row, class_name, tensors))
    hf_model.tie_weights()
    hf_model.generation_config = _generation_config(model, end, facts)
    hf_model.config.architectures = [class_name]
    return StockModel(row.name, hf_model.eval(), wide, numbering, _notes(row, wide))


def _their_state(
    hf_model: Any, wide: Model, row: StockClass, class_name: str, known: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of the class: our weights, and what it has besides them."""
    family = FAMILIES[row.name]
    mapper = WeightMapper(
        family, family.variants[class_name], f"{hf_model.base_model_prefix}.", wide
    )
    state = dict(hf_model.state_dict())
    is_fixed = {name: not value.is_meta for name, value in known.items()}
    pairs = mapper.match_tensors(
        {name: known[name] if is_fixed.get(name) else value for name, value in state.items()}
    )
    weights = mapper.to_theirs(pairs, {name: value.shape for name, value in state.items()})
    return state | weights


def _notes(row: StockClass, wide: Model) -> tuple[str, ...]:
    if row.name == "marian" and isinstance(wide.stacks[0].positions, LearnedPositions):
        return ("MarianMTModel.save_pretrained drops the stored positions: keep this folder",)
    return ()


def _constructor_options(config: Config) -> dict[str, Any]:
    return (
        {"add_pooling_layer": config.pooler}
        if config.kind == "classifier" and (config.classes is None)
        else {}
    )


def _known_tensors(model: Model, empty: Any) -> dict[str, Tensor]:
    """Return tensors whose values decide how a config is read: positions, bias of the logits."""
    known: dict[str, Tensor] = {}
    names = set(empty.state_dict())
    if "final_logits_bias" in names:
        shape = empty.state_dict()["final_logits_bias"].shape
        known["final_logits_bias"] = torch.full(shape, float(model.config.head_bias))
    if empty.config.model_type == "marian" and isinstance(model, Seq2Seq):
        for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
            name = f"model.{side}.embed_positions.weight"
            rows = torch.zeros(empty.state_dict()[name].shape)
            count = len(rows)
            if isinstance(stack.positions, LearnedPositions):
                count = min(count, stack.positions.length)
            index = torch.arange(count)
            rows[:count] = stack.positions.add(rows[None, :count], index)[0].float()
            known[name] = rows
    return known


def _first_position(numbering: PositionNumbering) -> int:
    return numbering.padding + 1 if numbering.rule == "ids" else numbering.offset


@torch.no_grad()
def _check_outputs(model: Model, wide: Model, numbering: PositionNumbering) -> None:
    """Raise `StockMismatchError` unless both models, in float64, compute the same."""
    config = model.config
    vocab = min(config.vocab or 1, config.source_vocab or config.vocab or 1)
    ids = (torch.arange(10).view(2, 5) * 7 + 5) % vocab
    index = numbering.position_index(torch.full_like(ids, -1), None, None)
    if isinstance(model, Seq2Seq) and isinstance(wide, Seq2Seq):
        expected = model(ids, ids[:, :3])
        memory = wide.encode(ids, position_index=index)
        got = wide.decode(ids[:, :3], memory, position_index=index[..., :3])
    else:
        expected, got = model(ids), wide(ids, position_index=index)
    difference = float((expected - got).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise StockMismatchError(f"outputs that differ by {difference:.2g}")


def _generation_config(model: Model, end: int, facts: Facts) -> Any:
    transformers = transformers_library()
    if model.config.kind not in ("seq2seq", "lm"):
        return None
    forbidden = [token for token in (PAD, START, END, UNKNOWN) if token != end]
    options: dict[str, Any] = {"max_new_tokens": min(facts.length - 1, 256)}
    if model.config.kind == "seq2seq":
        options |= {"decoder_start_token_id": START, "early_stopping": False}
    return transformers.GenerationConfig(
        bos_token_id=START,
        eos_token_id=end,
        pad_token_id=PAD,
        suppress_tokens=forbidden,
        do_sample=False,
        num_beams=1,
        **options,
    )
