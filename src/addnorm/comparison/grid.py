"""Grids of arms, depths, warm-ups and learning rates, and the cells they expand to."""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from addnorm.core.errors import UserError
from addnorm.core.validation import Depth, FrozenConfig, NonNegativeInt
from addnorm.models import Config, build
from addnorm.norms.base import make_norm
from addnorm.norms.base import registry as norms
from addnorm.train.schedules.base import recommended_schedule
from addnorm.train.schedules.base import registry as schedules
from addnorm.wirings.base import registry as wirings

SWEEP_LRS = (3e-4, 1e-3, 3e-3, 1e-2)
"""Learning rates of `lr=sweep`, half a decade apart."""
SWEEP = "sweep"
"""Value of `lr` that selects `SWEEP_LRS`."""
OWN_SCHEDULE = "own"
"""Value of `warmup` that selects the schedule recommended by the wiring's paper."""
DEFAULT_NORM = "layer"
UNSPECIFIED = "default"
"""Wiring and norm of a task of one's own where the comparison does not name them."""
AXES = ("wiring", "norm", "depth", "warmup", "lr")
"""Axes that every task has."""
CONSTANTS = {"true": True, "false": False, "null": None}
QUOTES = ('"', "'")
"""Quotes around a text with commas, or around one that looks like a number."""

Warmup = NonNegativeInt | Literal["own"]
LearningRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Arm:
    """A variant under comparison: a wiring with a norm, a schedule and values of further axes."""

    wiring: str
    norm: str = DEFAULT_NORM
    own: bool = False
    """Whether the arm uses the schedule its paper recommends instead of the common one."""
    extras: tuple[tuple[str, Any], ...] = ()
    """Names and values of the axes that the user named, such as `(("optimizer", "muon"),)`."""

    @property
    def name(self) -> str:
        """Name in tables, legends and sentences.

        >>> Arm("b2t").name, Arm("b2t", "rms", own=True).name
        ('b2t', 'b2t rms (own schedule)')
        >>> Arm("b2t", extras=(("optimizer", "muon"),)).name
        'b2t optimizer=muon'
        """
        is_named = self.wiring != UNSPECIFIED
        parts = [self.wiring] if is_named else []
        if self.norm not in ((DEFAULT_NORM, UNSPECIFIED) if is_named else (UNSPECIFIED,)):
            parts.append(self.norm)
        parts += [f"{name}={format_value(value)}" for name, value in self.extras]
        return " ".join(parts or [UNSPECIFIED]) + (" (own schedule)" if self.own else "")


@dataclass(frozen=True)
class Cell:
    """One training run: an arm at a depth, with a warm-up, a learning rate and a seed."""

    arm: Arm
    depth: int
    warmup: int | None
    """Warm-up steps; None if the arm uses its recommended schedule."""
    lr: float
    seed: int

    @property
    def setting(self) -> tuple[int | None, float]:
        """(warm-up, learning rate): the settings that are tuned for each arm and depth."""
        return self.warmup, self.lr

    @property
    def name(self) -> str:
        """Folder name: readable and unique.

        >>> Cell(Arm("mix_ln(post=0.25)"), 6, 100, 1e-3, 0).name
        'mix_ln_post_0.25-d6-w100-lr0.001-s0-dacf'
        """
        warmup = OWN_SCHEDULE if self.warmup is None else self.warmup
        label = f"{self.arm.name}-d{self.depth}-w{warmup}-lr{self.lr:g}-s{self.seed}"
        plain = re.sub(r"[^\w.-]+", "_", label.replace(" (own schedule)", "")).replace("_-", "-")
        if plain == label and self.lr == float(f"{self.lr:g}"):
            return plain
        # Characters or digits were dropped: a hash of the exact values keeps the name unique.
        exact = repr((self.arm.name, self.depth, warmup, self.lr, self.seed))
        return f"{plain[:100]}-{hashlib.sha256(exact.encode()).hexdigest()[:4]}"

    def schedule(self, common: str) -> str:
        """Return the schedule's call string: `common` with the warm-up, or the recommended one."""
        if self.warmup is None:
            return recommended_schedule(self.arm.wiring)
        call = schedules.resolve(common)
        options = schedules.card(call.name).options or {}
        if "warmup" not in options:
            if self.warmup:
                raise UserError(
                    f"warmup: expected 0 because schedule {call.name!r} has no warm-up, got "
                    f"{self.warmup}; choose constant, inverse_sqrt, linear, cosine or wsd"
                )
            return str(call)
        return str(schedules.resolve(type(call)(call.name, call.options | {"warmup": self.warmup})))


NameRule = Literal["registered", "stored", "free"]
_NAME_RULE: ContextVar[NameRule] = ContextVar("name_rule", default="registered")


@contextmanager
def use_name_rule(rule: NameRule) -> Iterator[None]:
    """Set which wirings and norms the grids created inside the block may name.

    Args:
        rule: `registered` ones; also unregistered ones, of a `stored` comparison; or `free` names,
            which have a meaning for the task only
    """
    token = _NAME_RULE.set(rule)
    try:
        yield
    finally:
        _NAME_RULE.reset(token)


class Grid(FrozenConfig):
    """Axes whose values are combined with each other; a comparison has one grid or several.

    >>> grid = Grid(wiring="post_ln, drop_path(b2t, rate=0.2)", depth=[6, 12], lr="sweep")
    >>> grid.wiring, len(list(grid.cells([0])))
    (('post_ln', 'drop_path(inner=b2t, rate=0.2)'), 16)
    """

    owner: ClassVar[str] = "comparison"

    wiring: tuple[str, ...] = ("post_ln", "pre_ln")
    """Wirings, as call strings."""
    norm: tuple[str, ...] = (DEFAULT_NORM,)
    """Norms, as call strings; each is combined with every wiring that has norms."""
    depth: tuple[Depth, ...] = (6,)
    """Numbers of layers; of each stack, if the model has an encoder and a decoder."""
    warmup: tuple[Warmup, ...] = (0,)
    """Warm-up steps; `own` adds each arm with the schedule its paper recommends."""
    lr: tuple[LearningRate, ...] = SWEEP_LRS
    """Learning rates; `sweep` selects 3e-4, 1e-3, 3e-3 and 1e-2."""
    axes: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """Further axes by name: recipe keys or, for a task of one's own, any name."""
    _has_free_names: bool = PrivateAttr(default=False)
    """Whether wirings and norms are names of the task, not of the registries."""

    @model_validator(mode="after")
    def _store_name_rule(self) -> "Grid":
        # Also called for a grid that exists already, then perhaps under another rule.
        self._has_free_names |= _NAME_RULE.get() == "free"
        return self

    @field_validator("axes", mode="before")
    @classmethod
    def _parse_axes(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise ValueError("axes: expected names with lists of values")
        return {name: parse_axis(name, values) for name, values in value.items()}

    @field_validator(*AXES, mode="before")
    @classmethod
    def _to_tuple(cls, value: Any) -> Any:
        """Accept a comma-separated string, a single value or a list."""
        if isinstance(value, str):
            value = (
                SWEEP_LRS
                if value.strip() == SWEEP
                else [_parse_number(each) for each in split_list(value)]
            )
        return tuple(value) if isinstance(value, list | tuple) else (value,)

    @field_validator("wiring", "norm")
    @classmethod
    def _resolve_names(cls, value: tuple[str, ...], info: Any) -> tuple[str, ...]:
        rule = _NAME_RULE.get()
        if rule == "free":
            return value
        registry = wirings if info.field_name == "wiring" else norms
        return tuple(
            each
            if rule == "stored" and not registry.can_resolve(each)
            else str(registry.resolve(each))
            for each in value
        )

    @field_validator(*AXES)
    @classmethod
    def _check_values(cls, value: tuple[Any, ...], info: Any) -> tuple[Any, ...]:
        if not value:
            raise ValueError(f"{info.field_name}: expected at least one value, got none")
        for each in value:
            if value.count(each) > 1:
                raise ValueError(f"{info.field_name}: expected distinct values, got {each} twice")
        return value

    def arms(self) -> list[Arm]:
        """Return every wiring with every norm and every value of further axes.

        Wirings without norms occur once.
        """
        free = self._has_free_names
        arms = [
            Arm(wiring, norm if free or has_norms(wiring) else DEFAULT_NORM, extras=extras)
            for wiring in self.wiring
            for norm in self.norm
            for extras in product(*([(k, each) for each in v] for k, v in self.axes.items()))
        ]
        return list(dict.fromkeys(arms))

    def size(self) -> int:
        """Return an upper bound of the number of cells per seed."""
        axes = (self.wiring, self.norm, self.depth, self.warmup, self.lr, *self.axes.values())
        return math.prod(map(len, axes))

    def cells(self, seeds: Iterable[int]) -> Iterator[Cell]:
        """Yield all combinations, the last axis varying fastest."""
        for arm in self.arms():
            for warmup in self.warmup:
                own = warmup == OWN_SCHEDULE
                steps = None if isinstance(warmup, str) else warmup
                for depth in self.depth:
                    for lr in self.lr:
                        for seed in seeds:
                            yield Cell(replace(arm, own=own), depth, steps, lr, seed)


def split_list(text: str) -> list[str]:
    """Split a string at commas outside brackets and outside values in quotes.

    >>> split_list("pre_ln, drop_path(b2t, rate=0.2),b2t")
    ['pre_ln', 'drop_path(b2t, rate=0.2)', 'b2t']
    >>> split_list("plain, 'a, b'")
    ['plain', "'a, b'"]
    """
    parts, nesting, quote = [""], 0, ""
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES and not parts[-1].strip():  # not an apostrophe inside a word
            quote = character if character in text[position + 1 :] else ""
        else:
            nesting += (character in "([") - (character in ")]")
        if character == "," and not nesting and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def has_norms(wiring: str) -> bool:
    """Return whether models with this wiring contain norms; those with ReZero do not.

    An unregistered wiring, which only a stored comparison can have, counts as one with norms.
    """
    if not wirings.can_resolve(wiring):
        return True
    return _has_norms(wiring, wirings.member(wirings.resolve(wiring).name))


@cache
def _has_norms(wiring: str, member: type) -> bool:
    # `member` is part of the key: a notebook may register another class under the same name.
    sizes: dict[str, Any] = {"kind": "lm", "vocab": 8, "dim": 8, "depth": 2, "heads": 2}
    model = build(Config(**sizes, wiring=wiring), device="meta")
    norm_type = type(make_norm(DEFAULT_NORM, 8))
    return any(isinstance(module, norm_type) for module in model.modules())


def parse_axis(name: str, values: Any) -> tuple[Any, ...]:
    """Return the values of an axis from a comma-separated string, a single value or a list.

    >>> parse_axis("dropout", "0, 0.1"), parse_axis("optimizer", "adamw(beta2=0.95),muon")
    ((0, 0.1), ('adamw(beta2=0.95)', 'muon'))
    """
    if isinstance(values, str):
        values = [_parse_constant(each) for each in split_list(values)]
    values = values if isinstance(values, list | tuple) else [values]
    if not values:
        raise ValueError(f"{name}: expected at least one value, got none")
    frozen = tuple(_freeze(name, each) for each in values)
    # By their text, which is part of the names of arms and folders.
    texts = [format_value(each) for each in frozen]
    for text in texts:
        if texts.count(text) > 1:
            raise ValueError(f"{name}: expected distinct values, got {text} twice")
    return frozen


def format_value(value: Any) -> str:
    """Return the value of an axis as text.

    >>> format_value(1e-3), format_value(True), format_value((1, 2)), format_value("muon")
    ('0.001', 'true', '[1, 2]', 'muon')
    """
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_value, value))}]"
    named = [name for name, constant in CONSTANTS.items() if constant is value]
    return named[0] if named else str(value)


def write_value(value: Any) -> str:
    """Return the value of an axis as `parse_axis` reads it: with quotes where it needs them.

    >>> write_value("muon"), write_value("a,b"), write_value("1"), write_value(1)
    ('muon', '"a,b"', '"1"', '1')
    """
    text = format_value(value)
    if not isinstance(value, str) or [_parse_constant(each) for each in split_list(text)] == [
        value
    ]:
        return text
    quote = next((quote for quote in QUOTES if quote not in value), QUOTES[0])
    return f"{quote}{value}{quote}"


def to_plain(value: Any) -> Any:
    """Return the value of an axis as it was written: tuples become lists again."""
    return [to_plain(each) for each in value] if isinstance(value, tuple) else value


def _freeze(name: str, value: Any) -> Any:
    """Return a value of an axis in hashable form: lists become tuples."""
    if isinstance(value, list | tuple):
        return tuple(_freeze(name, each) for each in value)
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if not isinstance(value, str | int | float | None) or not is_finite:
        raise ValueError(f"{name}: expected text, numbers, true, false or lists, got {value!r}")
    return value


def _parse_constant(text: str) -> Any:
    if len(text) > 1 and text[0] in QUOTES and text[0] == text[-1]:
        return text[1:-1]
    return CONSTANTS[text] if text in CONSTANTS else _parse_number(text)


def _parse_number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
