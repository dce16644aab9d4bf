"""Rewriting of a plain model into the config of a stock class with equal outputs.

A stock class often has more than the model needs: biases, gains, a table of positions. `widen`
builds the model of the class and fills these so that they change nothing. It also moves factors
that the class lacks into weights. What it cannot express raises `StockMismatchError`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.models import Config, Model, Seq2Seq, build
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import Norm
from addnorm.norms.none import NoNorm
from addnorm.norms.rms import RMSNorm
from addnorm.stacks import Decoder, Encoder
from addnorm.stacks.layer_config import INNER_OPTIONS
from addnorm.sublayers.multihead import MultiHeadAttention
from addnorm.sublayers.positions import (
    LearnedPositions,
    NoPositions,
    Positions,
    SinusoidalPositions,
)
from addnorm.sublayers.rotary import RotaryPositions

EQUAL_FIELDS = (
    *("kind", "dim", "depth", "heads", "vocab", "source_vocab", "activation", "cap", "window"),
    *("head_cap", "classes", "pooling", "pooler", "pooler_activation", "head_layer", "image"),
    *("pooler_norm", "head_activation", "embed_dim", "patch", "channels", "class_tokens"),
    *INNER_OPTIONS,
)
"""Fields of a config that must be equal as they are."""


class StockMismatchError(UserError):
    """A stock class lacks a part of a model; the message names it.

    Attributes:
        progress: what the class has of the model: 0 not even the wiring, 1 not the norms, 2 not the
            positions, 4 all of these
    """

    def __init__(self, message: str, progress: int = 4) -> None:
        super().__init__(message)
        self.progress = progress


def widen(model: Model, config: Config, *, offset: int = 0) -> Model:
    """Return a model of another config with equal outputs.

    Args:
        model: the model
        config: config of a stock class
        offset: position of the first token in the class

    Raises:
        StockMismatchError: the config cannot express the model
    """
    if model.config.kind != config.kind:
        raise StockMismatchError(f"kind={config.kind!r}", 0)
    narrow = build(config, device="meta")
    for ours, theirs in zip(model.stacks, narrow.stacks, strict=True):
        _check_wiring(ours, theirs)
    wide = build(config, device="meta").to_empty(device="cpu").to(_dtype(model))
    with torch.no_grad():
        state = _Filler(model, wide, offset).fill()
        wide.load_state_dict(state, strict=False)
    return wide.eval()


def _dtype(model: Model) -> torch.dtype:
    return next(model.parameters()).dtype


def _check_fields(ours: Config, theirs: Config) -> None:
    for name in EQUAL_FIELDS:
        if getattr(ours, name) != getattr(theirs, name):
            raise StockMismatchError(
                f"{name}={getattr(theirs, name)!r}, not {getattr(ours, name)!r}"
            )
    if (ours.encoder_depth or ours.depth) != (theirs.encoder_depth or theirs.depth):
        raise StockMismatchError(f"encoder_depth={theirs.encoder_depth or theirs.depth}")
    if theirs.tied and (not ours.tied or ours.embedding_factor != theirs.embedding_factor):
        raise StockMismatchError("a head that shares the table of the embedding")


def _check_wiring(ours: Encoder | Decoder, theirs: Encoder | Decoder) -> None:
    same = type(ours.wiring) is type(theirs.wiring)
    same &= getattr(ours.wiring, "shared", None) == getattr(theirs.wiring, "shared", None)
    for attribute in ("final_norm", "norms", "outer_norms"):
        pair = (getattr(each.wiring, attribute, None) for each in (ours, theirs))
        same &= len({None if each is None else attribute for each in pair}) == 1
    if not same:
        raise StockMismatchError(
            f"the wiring {theirs.wiring_call} in the {ours.side}, not {ours.wiring_call}", 0
        )


class _Filler:
    """Computation of the weights of the wide model."""

    def __init__(self, model: Model, wide: Model, offset: int) -> None:
        self.model, self.wide, self.offset = model, wide, offset
        self.state = {k: v for k, v in model.state_dict().items() if not k.endswith("_extra_state")}
        self.result: dict[str, Tensor] = {}
        self.used: set[str] = set()

    def fill(self) -> dict[str, Tensor]:
        for name, module in self.wide.named_modules():
            if isinstance(module, Norm):
                self._fill_norm(name, module)
        pairs = list(zip(self.model.stacks, self.wide.stacks, strict=True))
        for ours, theirs in pairs:
            self._fill_positions(ours, theirs)
        _check_fields(self.model.config, self.wide.config)
        for ours, theirs in pairs:
            self._fill_attention(ours, theirs)
        self._fill_embedding()
        for name, value in self.wide.state_dict().items():
            if not name.endswith("_extra_state") and name not in self.result:
                self.result[name] = self._copy(name, value)
        for name in self.state:
            if name not in self.used and not self._is_zero_bias(name):
                raise StockMismatchError(f"no {name}")
        return self.result

    def _is_zero_bias(self, name: str) -> bool:
        return name.endswith(".bias") and not bool(self.state[name].any())

    def _copy(self, name: str, value: Tensor) -> Tensor:
        """Return our tensor; zeros for a bias or segments that only the wide model has."""
        if name in self.state:
            self.used.add(name)
            if self.state[name].shape != value.shape:
                raise StockMismatchError(
                    f"{name} of shape {tuple(value.shape)}, not {tuple(self.state[name].shape)}"
                )
            return self.state[name]
        if name.endswith(".bias") or name == "embed.types":
            return torch.zeros_like(value)
        raise StockMismatchError(f"{name}, which the model lacks")

    def _fill_norm(self, name: str, norm: Norm) -> None:
        try:
            ours = self.model.get_submodule(name)
        except AttributeError:
            raise StockMismatchError(f"the norm {name}, which the model lacks", 1) from None
        if isinstance(ours, NoNorm) and isinstance(norm, NoNorm):
            return
        is_same = type(ours) is type(norm) and isinstance(ours, AffineNorm)
        for attribute in ("eps", "var", "eps_mode", "k"):
            is_same &= getattr(ours, attribute, None) == getattr(norm, attribute, None)
        if not is_same or not isinstance(ours, AffineNorm) or not isinstance(norm, AffineNorm):
            raise StockMismatchError(f"{_describe(norm)} at {name}, not {_describe(ours)}", 1)
        ones, zeros = torch.ones(norm.dim), torch.zeros(norm.dim)
        gain = ones if ours.weight is None else ours.weight + getattr(ours, "gain_offset", 0.0)
        bias = zeros if ours.bias is None else ours.bias
        self.used |= {f"{name}.weight", f"{name}.bias"}
        if norm.weight is not None:
            self.result[f"{name}.weight"] = gain - getattr(norm, "gain_offset", 0.0)
        elif not torch.equal(gain, torch.ones_like(gain)):
            raise StockMismatchError(f"no gain at {name}", 1)
        if norm.bias is not None:
            self.result[f"{name}.bias"] = bias
        elif bool(bias.any()):
            raise StockMismatchError(f"no bias of the norm {name}", 1)

    def _fill_positions(self, ours: Encoder | Decoder, theirs: Encoder | Decoder) -> None:
        source, target, name = ours.positions, theirs.positions, f"{_name(self.wide, theirs)}."
        table = f"{name}positions.table"
        absolute = (LearnedPositions, SinusoidalPositions, NoPositions)
        if isinstance(target, LearnedPositions) and isinstance(source, absolute):
            count = target.length - self.offset
            if isinstance(source, LearnedPositions):
                count = min(count, source.length)
            rows = torch.zeros(target.length, target.dim, dtype=_dtype(self.model))
            index = torch.arange(count)
            rows[self.offset : self.offset + count] = source.add(rows[None, :count], index)[0]
            self.result[table] = rows
            self.used.add(table)
        elif isinstance(source, RotaryPositions) and isinstance(target, RotaryPositions):
            if _settings(source, "layout") != _settings(target, "layout"):
                raise _positions_mismatch(ours, theirs)
        elif _settings(source) != _settings(target):
            raise _positions_mismatch(ours, theirs)

    def _fill_attention(self, ours: Encoder | Decoder, theirs: Encoder | Decoder) -> None:
        """Write queries and keys: scale, layout of rotary positions, number of key heads."""
        name = _name(self.wide, theirs)
        for index, (source, target) in enumerate(
            zip(ours.sublayers, theirs.sublayers, strict=True)
        ):
            if not isinstance(source, MultiHeadAttention):
                continue
            assert isinstance(target, MultiHeadAttention)
            site = f"{name}.sublayers.{index}"
            if (source.head_dim, source.persistent) != (target.head_dim, target.persistent):
                raise StockMismatchError(f"head_dim={target.head_dim}, not {source.head_dim}")
            if type(source.qk_norm) is not type(target.qk_norm):
                raise StockMismatchError(
                    f"query-key norm {target.qk_norm_call}, not {source.qk_norm_call}"
                )
            ratio = source.logit_scale / target.logit_scale
            order = self._feature_order(ours.positions, theirs.positions, source)
            for part, heads, factor in (
                ("q_proj", source.heads, ratio),
                ("k_proj", source.kv_heads, 1.0),
                ("v_proj", source.kv_heads, 1.0),
            ):
                repeats = target.kv_heads // source.kv_heads if part != "q_proj" else 1
                if repeats * heads not in (target.heads, target.kv_heads):
                    raise StockMismatchError(f"{target.kv_heads} key heads, not {source.kv_heads}")
                for leaf in ("weight", "bias"):
                    key = f"{site}.{part}.{leaf}"
                    if key not in self.state:
                        continue
                    rows = self.state[key].unflatten(0, (heads, source.head_dim))
                    rows = rows if part == "v_proj" else rows[:, order]
                    if not source.has_qk_norm:
                        rows = rows * factor
                    self._put(key, rows.repeat_interleave(repeats, 0).flatten(0, 1))
            if source.has_qk_norm and (ratio != 1 or list(order) != sorted(order)):
                self._fill_query_norm(site, ratio, order)

    def _fill_query_norm(self, site: str, ratio: float, order: list[int]) -> None:
        for part, factor in (("query_norm", ratio), ("key_norm", 1.0)):
            key = f"{site}.qk_norm.{part}.weight"
            if key not in self.result or self.result[key].numel() != len(order):
                raise StockMismatchError(f"another factor or layout of queries at {site}")
            self.result[key] = self.result[key][order] * factor

    def _put(self, key: str, value: Tensor) -> None:
        if key in self.wide.state_dict():
            self.result[key] = value
            self.used.add(key)

    def _feature_order(
        self, ours: Positions, theirs: Positions, attention: MultiHeadAttention
    ) -> list[int]:
        """Return the order of a head's features that turns one rotary layout into the other."""
        features = list(range(attention.head_dim))
        if not isinstance(ours, RotaryPositions) or not isinstance(theirs, RotaryPositions):
            return features
        if ours.layout == theirs.layout:
            return features
        rotated, rest = features[: ours.rotary_dim], features[ours.rotary_dim :]
        half = len(rotated) // 2
        if ours.layout == "interleaved":
            return rotated[0::2] + rotated[1::2] + rest
        return [i for pair in zip(rotated[:half], rotated[half:], strict=True) for i in pair] + rest

    def _fill_embedding(self) -> None:
        """Write tables with their norms, and factors that the class lacks."""
        model: Any = self.model
        ours, theirs = self.model.config, self.wide.config
        if ours.image is not None:
            return
        ratio = ours.embedding_factor / theirs.embedding_factor
        self._put("embed.table", model.embed.rows * ratio)
        if isinstance(self.model, Seq2Seq) and self.model.source_embed is not None:
            self._put("source_embed.table", self.model.source_embed.rows * ratio)
        if hasattr(model.head, "rows"):
            factor = ours.head_factor / theirs.head_factor
            if factor != 1 and theirs.tied:
                raise StockMismatchError(f"head_scale={theirs.head_factor}, not {ours.head_factor}")
            self._put("head.table", model.head.rows(model.embed) * factor)
            self.used.add("head.table")


def _positions_mismatch(ours: Encoder | Decoder, theirs: Encoder | Decoder) -> StockMismatchError:
    calls = theirs.positions_call, ours.positions_call
    return StockMismatchError(f"positions {calls[0]}, not {calls[1]}", 2)


def _settings(module: nn.Module, *ignored: str) -> dict[str, Any]:
    """Return the class and the plain attributes of a module."""
    plain = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, str | int | float | None)
        and not name.startswith("_")
        and name not in ("training", *ignored)
    }
    return {"class": type(module), **plain}


def _describe(norm: nn.Module) -> str:
    settings = _settings(norm)
    extra = f" with eps {settings['eps']:g}" if "eps" in settings else ""
    name = "RMSNorm" if isinstance(norm, RMSNorm) else type(norm).__name__
    return f"{name}{extra}"


def _name(model: Model, stack: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is stack)
