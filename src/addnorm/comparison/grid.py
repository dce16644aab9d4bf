"""What is varied: arms, depths, warm-ups, learning rates; and the cells that come of it."""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from addnorm.core.errors import UserError
from addnorm.models import Config, build
from addnorm.norms.base import make_norm
from addnorm.norms.base import registry as norms
from addnorm.train.schedules.base import recommended_schedule
from addnorm.train.schedules.base import registry as schedules
from addnorm.wirings.base import registry as wirings

SWEEP_LRS = (3e-4, 1e-3, 3e-3, 1e-2)
"""The ladder of learning rates where one is asked for: half decades, as far as Transformers go."""
OWN_SCHEDULE = "own"
"""The warm-up, and the schedule behind it, that an arm's paper recommends."""
DEFAULT_NORM = "layer"

Depth = Annotated[int, Field(ge=1, strict=True)]
Warmup = Annotated[int, Field(ge=0, strict=True)] | Literal["own"]
LearningRate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Arm:
    """One variant: a wiring with a norm, under the common schedule or under its own."""

    wiring: str
    norm: str = DEFAULT_NORM
    own: bool = False
    """Whether it is trained under the schedule that it recommends; a separate arm, never mixed."""

    @property
    def name(self) -> str:
        """What it is called in tables, legends and sentences.

        >>> Arm("b2t").name, Arm("b2t", "rms", own=True).name
        ('b2t', 'b2t rms (own schedule)')
        """
        parts = [self.wiring] + ([self.norm] if self.norm != DEFAULT_NORM else [])
        return " ".join(parts) + (" (own schedule)" if self.own else "")


@dataclass(frozen=True)
class Cell:
    """One training: an arm at a depth with its settings and a seed."""

    arm: Arm
    depth: int
    warmup: int | None
    """Steps of warm-up; None where the arm's own schedule has its own."""
    lr: float
    seed: int

    @property
    def setting(self) -> tuple[int | None, float]:
        """(warm-up, learning rate): what may be chosen for an arm at a depth."""
        return self.warmup, self.lr

    @property
    def name(self) -> str:
        """The name of its folder: readable, and one for each cell.

        >>> Cell(Arm("mix_ln(post=0.25)"), 6, 100, 1e-3, 0).name
        'mix_ln_post_0.25-d6-w100-lr0.001-s0-dacf'
        """
        warmup = OWN_SCHEDULE if self.warmup is None else self.warmup
        told = f"{self.arm.name}-d{self.depth}-w{warmup}-lr{self.lr:g}-s{self.seed}"
        plain = re.sub(r"[^\w.-]+", "_", told.replace(" (own schedule)", "")).replace("_-", "-")
        if plain == told and self.lr == float(f"{self.lr:g}"):
            return plain
        exact = repr((self.arm.name, self.depth, warmup, self.lr, self.seed))
        return f"{plain[:100]}-{hashlib.sha256(exact.encode()).hexdigest()[:4]}"

    def schedule(self, common: str) -> str:
        """The call string of its schedule: the common one with its warm-up, or the arm's own."""
        if self.warmup is None:
            return recommended_schedule(self.arm.wiring)
        call = schedules.resolve(common)
        options = schedules.card(call.name).options or {}
        if "warmup" not in options:
            if self.warmup:
                raise UserError(
                    f"schedule {call.name!r} has no warm-up, and the comparison asks for "
                    f"{self.warmup} steps of it; choose constant, inverse_sqrt, linear, cosine or "
                    "wsd, or --warmup 0"
                )
            return str(call)
        return str(schedules.resolve(type(call)(call.name, call.options | {"warmup": self.warmup})))


class Grid(BaseModel):
    """Axes that are crossed with each other; a comparison is one grid or several.

    >>> grid = Grid(wiring="post_ln, drop_path(b2t, rate=0.2)", depth=[6, 12], lr="sweep")
    >>> grid.wiring, len(list(grid.cells([0])))
    (('post_ln', 'drop_path(inner=b2t, rate=0.2)'), 16)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    wiring: tuple[str, ...] = ("post_ln", "pre_ln")
    """Wirings, as call strings."""
    norm: tuple[str, ...] = (DEFAULT_NORM,)
    """Norms, as call strings; each is put into every wiring that has norms."""
    depth: tuple[Depth, ...] = (6,)
    """Layers; of each stack, where there are two."""
    warmup: tuple[Warmup, ...] = (0,)
    """Steps of warm-up; `own` adds each arm once more with the schedule that it recommends."""
    lr: tuple[LearningRate, ...] = SWEEP_LRS
    """Learning rates; `sweep` is a ladder of them."""

    @field_validator("*", mode="before")
    @classmethod
    def _to_tuple(cls, value: Any) -> Any:
        """A text of names between commas, a single value or a list: all are lists."""
        if isinstance(value, str):
            value = (
                SWEEP_LRS
                if value.strip() == "sweep"
                else [_parse_number(each) for each in split(value)]
            )
        return tuple(value) if isinstance(value, list | tuple) else (value,)

    @field_validator("wiring", "norm")
    @classmethod
    def _resolve_names(cls, value: tuple[str, ...], info: Any) -> tuple[str, ...]:
        registry = wirings if info.field_name == "wiring" else norms
        return tuple(str(registry.resolve(each)) for each in value)

    @field_validator("*")
    @classmethod
    def _check_values(cls, value: tuple[Any, ...], info: Any) -> tuple[Any, ...]:
        if not value:
            raise ValueError(f"{info.field_name} is empty; wanted one value or more")
        for each in value:
            if value.count(each) > 1:
                raise ValueError(f"{info.field_name} names {each} twice; keep one of them")
        return value

    def arms(self) -> list[Arm]:
        """Every wiring with every norm; a wiring that has no norm stands there once."""
        found = [
            Arm(wiring, norm if has_norms(wiring) else DEFAULT_NORM)
            for wiring in self.wiring
            for norm in self.norm
        ]
        return list(dict.fromkeys(found))

    def size(self) -> int:
        """How many cells it has for each seed, at most."""
        axes = (self.wiring, self.norm, self.depth, self.warmup, self.lr)
        return math.prod(map(len, axes))

    def cells(self, seeds: Iterable[int]) -> Iterator[Cell]:
        """All that is crossed, in the order in which it is told."""
        for arm in self.arms():
            for warmup in self.warmup:
                own = warmup == OWN_SCHEDULE
                steps = None if isinstance(warmup, str) else warmup
                for depth in self.depth:
                    for lr in self.lr:
                        for seed in seeds:
                            yield Cell(Arm(arm.wiring, arm.norm, own), depth, steps, lr, seed)


def split(text: str) -> list[str]:
    """What stands between commas, those inside brackets not counted.

    >>> split("pre_ln, drop_path(b2t, rate=0.2),b2t")
    ['pre_ln', 'drop_path(b2t, rate=0.2)', 'b2t']
    """
    parts, open_ = [""], 0
    for sign in text:
        open_ += (sign in "([") - (sign in ")]")
        if sign == "," and not open_:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts if part.strip()]


@cache
def has_norms(wiring: str) -> bool:
    """Whether the choice of a norm changes anything: ReZero has none."""
    sizes: dict[str, Any] = {"kind": "lm", "vocab": 8, "dim": 8, "depth": 2, "heads": 2}
    model = build(Config.from_kwargs(**sizes, wiring=wiring), device="meta")
    chosen = type(make_norm(DEFAULT_NORM, 8))
    return any(isinstance(module, chosen) for module in model.modules())


def _parse_number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
