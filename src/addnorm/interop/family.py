"""What a family is: data that tells how a Hugging Face model is one of ours."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.interop.config_reader import ConfigReader

Reader = Callable[[ConfigReader], dict[str, Any]]


@dataclass(frozen=True)
class WeightRule:
    """Where a tensor of theirs stands with us.

    theirs: a name without the prefix of the class; `{i}` is the number of a layer; it stands for a
        module with weight and bias, unless it ends in the name of a tensor
    ours: one name, or several where theirs is made of several; `decoder.{i}.self.q_proj` is the
        query of the self-attention of layer i, `.norm` and `.outer_norm` its norms in the wiring
    way: how values are carried over, see `WAYS` in `rules.py`
    """

    theirs: str
    ours: tuple[str, ...]
    transform: str = "same"


def parse_rules(text: str) -> tuple[WeightRule, ...]:
    """Rules from lines of `theirs -> ours, ours  (way)`.

    >>> rules("attn.c_attn -> q, k  (stack)")
    (Rule(theirs='attn.c_attn', ours=('q', 'k'), way='stack'),)
    """
    made = []
    for line in filter(None, map(str.strip, text.splitlines())):
        theirs, _, rest = line.partition("->")
        ours, _, way = rest.partition("(")
        names = tuple(name.strip() for name in ours.split(","))
        made.append(WeightRule(theirs.strip(), names, way.strip(" )") or "same"))
    return tuple(made)


@dataclass(frozen=True)
class Constant:
    """A tensor of theirs that is no weight: it must have a value that we know."""

    theirs: str
    value: Literal["zero", "waves", "spare"]
    why: str


@dataclass(frozen=True)
class PositionNumbering:
    """How the class numbers its tokens where it is not told.

    rule: "arange" 0, 1, 2, ... padding or not; "mask" valid tokens are counted; "ids" tokens that
        are not the padding token are counted, and padding_idx is added
    offset: added to all numbers, also to those given
    """

    rule: Literal["arange", "mask", "ids"] = "arange"
    offset: int = 0
    padding: int = 0

    def position_index(
        self, ids: Tensor, mask: Tensor | None, position_ids: Tensor | None, *, past: int = 0
    ) -> Tensor:
        """The numbers of tokens, (L) or (B, L)."""
        if position_ids is not None:
            return position_ids + self.offset
        if self.rule == "ids":
            real = (ids != self.padding).long()
            return (real.cumsum(1) + past) * real + self.padding
        if self.rule == "mask" and mask is not None:
            return (mask.long().cumsum(1) - 1).clamp(min=0) + self.offset + past
        return torch.arange(past, past + ids.shape[1], device=ids.device) + self.offset


@dataclass(frozen=True, kw_only=True)
class HeadVariant:
    """One class of a family: what it adds to the backbone."""

    kind: str
    """The kind of our model."""
    output_kind: Literal["logits", "hidden"] = "logits"
    """What it returns."""
    without_prefix: bool = False
    """Whether its tensors stand without the prefix of the backbone."""
    head_rules: tuple[WeightRule, ...] = ()
    """Rules of what is not the backbone."""
    read: Reader = field(default=lambda f: {})
    """What it adds to the config."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models: its classes, its config, its tensors."""

    name: str
    """Its `model_type`."""
    variants: Mapping[str, HeadVariant]
    """Its classes that are understood."""
    read: Reader
    """Our config from theirs."""
    tensors: tuple[WeightRule, ...]
    """Rules of the backbone."""
    constants: tuple[Constant, ...] = ()
    """Tensors that are no weights."""
    numbering: PositionNumbering | Callable[[Mapping[str, Any]], PositionNumbering] = field(
        default_factory=PositionNumbering
    )
    """How tokens are numbered."""

    def get_numbering(self, values: Mapping[str, Any]) -> PositionNumbering:
        """How tokens are numbered, with that config."""
        return (
            self.numbering
            if isinstance(self.numbering, PositionNumbering)
            else self.numbering(values)
        )


FAMILIES: dict[str, Family] = {}


def register_families(*families: Family) -> None:
    """Make families known."""
    for family in families:
        assert family.name not in FAMILIES, family.name
        FAMILIES[family.name] = family


def find_family(model_type: str, class_name: str) -> tuple[Family, HeadVariant]:
    """The family and the form of a class, or why there is none."""
    family = FAMILIES.get(model_type)
    if family is None:
        raise UserError(
            f"{class_name} is of the family {model_type!r}, which is not understood; nothing was "
            f"loaded. Known: {', '.join(sorted(FAMILIES))}"
        )
    if class_name not in family.variants:
        raise UserError(
            f"{class_name} of the family {model_type!r} is not understood; nothing was loaded. "
            f"Known: {', '.join(family.variants)}"
        )
    return family, family.variants[class_name]
