"""Description of a model family of transformers: classes, config, tensors, positions.

A family is pure data. Its tensors are described by rules, one per line of a text:

    h.{i}.attn.c_attn -> decoder.{i}.self.q_proj, decoder.{i}.self.k_proj  (stack_transpose)

The left side is a name in transformers (`{i}` is the layer), the right side one or more names in
addnorm, and the word in parentheses the transformation of the values (default: none).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.interop.config_reader import ConfigReader

Reader = Callable[[ConfigReader], dict[str, Any]]
"""Maps a config of transformers to fields of `Config`."""


@dataclass(frozen=True)
class WeightRule:
    """Correspondence of one tensor, or of one module, of transformers with ours."""

    theirs: str
    """Name without the prefix of the backbone; `{i}` is the layer. A module name stands for its
    weight and its bias."""
    ours: tuple[str, ...]
    """One name, or several if theirs is a fused tensor. `decoder.{i}.self.q_proj` is the query
    projection of the self-attention in layer i; `.norm` and `.outer_norm` are its norms in the
    wiring. A name with `{e}` stands for one name per expert."""
    transform: str = "same"
    """Name of the value transformation, a key of `TRANSFORMS` in `weight_mapping.py`."""


def parse_rules(text: str) -> tuple[WeightRule, ...]:
    """Parse rules from lines of `theirs -> ours, ours  (transform)`.

    >>> parse_rules("attn.c_attn -> q, k  (stack)")
    (WeightRule(theirs='attn.c_attn', ours=('q', 'k'), transform='stack'),)
    """
    rules = []
    for line in filter(None, map(str.strip, text.splitlines())):
        theirs, _, rest = line.partition("->")
        ours, _, transform = rest.partition("(")
        names = tuple(name.strip() for name in ours.split(","))
        rules.append(WeightRule(theirs.strip(), names, transform.strip(" )") or "same"))
    return tuple(rules)


@dataclass(frozen=True)
class Constant:
    """Tensor of transformers that is not a weight of ours and must have a known value."""

    theirs: str
    """Name of the tensor."""
    value: Literal["zero", "sinusoids", "unused"]
    """Expected value; "unused" tensors may have any value and are kept for the way back."""
    why: str
    """Description of the expected value, for error messages."""


@dataclass(frozen=True)
class PositionNumbering:
    """Rule by which a class numbers its tokens if no position ids are passed."""

    rule: Literal["arange", "mask", "ids"] = "arange"
    """`arange`: 0, 1, 2, ... regardless of padding; `mask`: count valid tokens; `ids`: count tokens
    other than the padding token, starting after its id."""
    offset: int = 0
    """Added to all positions, including those that are passed."""
    padding: int = 0
    """Id of the padding token, for the rule `ids`."""

    def position_index(
        self, ids: Tensor, mask: Tensor | None, position_ids: Tensor | None, *, past: int = 0
    ) -> Tensor:
        """Return the positions of tokens, (L) or (B, L).

        Args:
            ids: (B, L) token ids
            mask: (B, L) boolean, True at valid tokens
            position_ids: explicit positions, which override the rule
            past: number of earlier tokens in the cache
        """
        if position_ids is not None:
            return position_ids + self.offset
        if self.rule == "ids":
            is_token = (ids != self.padding).long()
            return (is_token.cumsum(1) + past) * is_token + self.padding
        if self.rule == "mask" and mask is not None:
            return (mask.long().cumsum(1) - 1).clamp(min=0) + self.offset + past
        return torch.arange(past, past + ids.shape[1], device=ids.device) + self.offset


@dataclass(frozen=True, kw_only=True)
class HeadVariant:
    """One class of a family: the backbone with a certain head."""

    kind: str
    """Kind of our model: lm, masked_lm, classifier or seq2seq."""
    output_kind: Literal["logits", "hidden"] = "logits"
    """Whether the class returns logits or the last hidden state."""
    without_prefix: bool = False
    """Whether the backbone's tensors have no prefix, because the class is the backbone itself."""
    head_rules: tuple[WeightRule, ...] = ()
    """Rules of the tensors outside of the backbone."""
    read: Reader = field(default=lambda f: {})
    """Fields of our config that the head determines."""
    absent: tuple[str, ...] = ()
    """As `Family.absent`, outside of the backbone."""
    shifts_labels: bool = True
    """Whether a language model compares the logits of a token with the label of the next one."""
    restarts_cache: bool = False
    """Whether `generate` computes all keys again once a text is longer than
    `original_max_position_embeddings`, where the rotation of earlier tokens changes."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Model family of transformers, identified by its `model_type`."""

    name: str
    """The `model_type`."""
    variants: Mapping[str, HeadVariant]
    """Supported classes by name."""
    read: Reader
    """Fields of our config that the backbone determines."""
    tensors: tuple[WeightRule, ...]
    """Rules of the backbone's tensors."""
    constants: tuple[Constant, ...] = ()
    """Tensors that are not weights."""
    absent: tuple[str, ...] = ()
    """Ends of names of our biases that the class may lack; they are 0 and stay so in training."""
    numbering: PositionNumbering | Callable[[Mapping[str, Any]], PositionNumbering] = field(
        default_factory=PositionNumbering
    )
    """Numbering of tokens, or a function that derives it from the config of transformers."""

    def get_numbering(self, values: Mapping[str, Any]) -> PositionNumbering:
        """Return the numbering of tokens for a config of transformers."""
        if isinstance(self.numbering, PositionNumbering):
            return self.numbering
        return self.numbering(values)


REFUSED = {
    **dict.fromkeys(
        ("phimoe", "deepseek_v3"),
        "its router or experts compute something else than those of addnorm, a softmax over "
        "gated feed-forwards",
    ),
    "albert": "its layers share their weights, which the stacks of addnorm do not",
    "deberta": "its attention has terms of content and position, which addnorm does not have",
    "deberta-v2": "its attention has terms of content and position, which addnorm does not have",
    "xlnet": "its attention has terms of content and position, which addnorm does not have",
    "mamba": "it has no attention",
}
"""Reasons why known families cannot be converted, by `model_type`."""
FAMILIES: dict[str, Family] = {}
"""Supported families by `model_type`."""


def register_families(*families: Family) -> None:
    """Add families to `FAMILIES`."""
    for family in families:
        assert family.name not in FAMILIES, family.name
        FAMILIES[family.name] = family


def find_family(model_type: str, class_name: str) -> tuple[Family, HeadVariant]:
    """Return the family and the variant of a class; raise `UserError` if it is not supported."""
    family = FAMILIES.get(model_type)
    if family is None and model_type in REFUSED:
        raise UserError(f"cannot convert {class_name} exactly: {REFUSED[model_type]}")
    if family is None:
        raise UserError(
            f"expected a supported family, got {class_name} of the family {model_type!r}; "
            f"supported: {', '.join(sorted(FAMILIES))}"
        )
    if class_name not in family.variants:
        kinds = {variant.kind for variant in family.variants.values()}
        is_classifier = class_name.endswith("Classification") and "classifier" not in kinds
        reason = ", a classifier on a decoder, while those of addnorm read in both directions"
        raise UserError(
            f"expected a supported class of the family {model_type!r}, got {class_name}"
            f"{reason * is_classifier}; supported: {', '.join(family.variants)}"
        )
    return family, family.variants[class_name]
