"""Tensors from theirs to ours and back: every one is used or explained."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.interop.family import Constant, Family, HeadVariant, WeightRule
from addnorm.models import Model
from addnorm.stacks import Decoder, Encoder

Shapes = Sequence[torch.Size]


@dataclass(frozen=True)
class TensorTransform:
    """How one tensor of theirs becomes one or more of ours, and back."""

    split: Callable[[Tensor, Shapes, int], Sequence[Tensor]]
    """From a tensor of theirs, the shapes of ours and the features of a head."""
    merge: Callable[[Sequence[Tensor], torch.Size, int], Tensor]
    """From tensors of ours, the shape of theirs and the features of a head."""


def _transpose(x: Tensor) -> Tensor:
    return x.mT if x.ndim == 2 else x


def _split_rows(x: Tensor, shapes: Shapes, head_dim: int) -> Sequence[Tensor]:
    sizes = [shape[0] for shape in shapes]
    return torch.split(x, sizes) if sum(sizes) == len(x) else [x]


def _split_by_head(x: Tensor, shapes: Shapes, head_dim: int) -> Sequence[Tensor]:
    """(key heads, queries of each + key + value, head_dim) are the rows."""
    keys = shapes[1][0] // head_dim
    rows = x.reshape(keys, -1, head_dim, *x.shape[1:])
    parts = rows[:, :-2], rows[:, -2:-1], rows[:, -1:]
    return [part.flatten(0, 2) for part in parts]


def _merge_by_head(parts: Sequence[Tensor], shape: torch.Size, head_dim: int) -> Tensor:
    keys = len(parts[1]) // head_dim
    rows = [part.reshape(keys, -1, head_dim, *part.shape[1:]) for part in parts]
    return torch.cat(rows, 1).flatten(0, 2)


TRANSFORMS = {
    "same": TensorTransform(lambda x, s, k: [x], lambda parts, s, k: parts[0]),
    # Conv1D keeps its matrix the other way round.
    "transpose": TensorTransform(
        lambda x, s, k: [_transpose(x)], lambda parts, s, k: _transpose(parts[0])
    ),
    "reshape": TensorTransform(
        lambda x, s, k: [x.reshape(s[0])] if x.numel() == s[0].numel() else [x],
        lambda parts, s, k: parts[0].reshape(s),
    ),
    # A second name of a tensor, in models that do not tie a tensor that nothing reads.
    "spare": TensorTransform(lambda x, s, k: [x], lambda parts, s, k: parts[0]),
    # Several matrices in one, one below the other.
    "stack": TensorTransform(_split_rows, lambda parts, s, k: torch.cat(tuple(parts))),
    "stack_transpose": TensorTransform(
        lambda x, s, k: _split_rows(_transpose(x), s, k),
        lambda parts, s, k: _transpose(torch.cat(tuple(parts))),
    ),
    # Query, key and value in one, head by head.
    "by_head": TensorTransform(_split_by_head, _merge_by_head),
}


@dataclass(frozen=True)
class TensorPair:
    """A tensor of theirs and what it is with us; no names where it is a constant."""

    theirs: str
    ours: tuple[str, ...]
    transform: str
    constant: Constant | None = None


UNUSED_TENSOR = Constant("", "spare", "read by nothing")


class WeightMapper:
    """Carries the tensors of one model of a family."""

    def __init__(self, family: Family, variant: HeadVariant, prefix: str, model: Model) -> None:
        before = "" if variant.without_prefix else prefix
        self.rules = [
            *(
                WeightRule(before + rule.theirs, rule.ours, rule.transform)
                for rule in family.tensors
            )
        ]
        self.rules += [
            WeightRule(rule.theirs, rule.ours, rule.transform) for rule in variant.head_rules
        ]
        self.constants = [
            constant
            for known in family.constants
            for constant in (known, Constant(before + known.theirs, known.value, known.why))
        ]
        self.model = model
        self.state = {
            name: value
            for name, value in model.state_dict().items()
            if not name.endswith("_extra_state")
        }
        config = model.config
        self.head_dim = config.head_dim or config.dim // config.heads

    def match_tensors(self, theirs: Mapping[str, Tensor]) -> list[TensorPair]:
        """What every tensor of theirs is; refused if any of theirs or of ours is left over."""
        found = {name: self._find_pair(name) for name in theirs}
        strange = [name for name, pair in found.items() if pair is None]
        pairs = [pair for pair in found.values() if pair is not None]
        first = {pair.ours: theirs[pair.theirs] for pair in pairs if pair.transform != "spare"}
        pairs = [
            TensorPair(pair.theirs, (), "same", UNUSED_TENSOR)
            if pair.transform == "spare" and not torch.equal(first[pair.ours], theirs[pair.theirs])
            else pair
            for pair in pairs
        ]
        used = {ours for pair in pairs for ours in pair.ours}
        missing = [name for name in self.state if name not in used]
        if strange or missing:
            told = [f"tensors that have no place: {_format_names(strange)}"] if strange else []
            told += (
                [f"tensors that are missing, in our names: {_format_names(missing)}"]
                if missing
                else []
            )
            raise UserError(f"not understood: {'; '.join(told)}; nothing was loaded")
        return pairs

    def to_ours(
        self, pairs: Sequence[TensorPair], theirs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Our state from theirs, copied."""
        made: dict[str, Tensor] = {}
        for pair in pairs:
            value = theirs[pair.theirs].detach()
            if pair.constant is not None:
                self._check_constant(pair.constant, pair.theirs, value)
                continue
            shapes = [self.state[name].shape for name in pair.ours]
            parts = TRANSFORMS[pair.transform].split(value, shapes, self.head_dim)
            if [part.shape for part in parts] != shapes:
                wanted = zip(pair.ours, shapes, strict=True)
                told = ", ".join(f"{name} {tuple(shape)}" for name, shape in wanted)
                raise UserError(
                    f"not understood: {pair.theirs} of shape {tuple(value.shape)} does not give "
                    f"{told}; nothing was loaded"
                )
            for name, part in zip(pair.ours, parts, strict=True):
                if name in made and not torch.equal(made[name], part):
                    raise UserError(
                        f"not understood: {pair.theirs} should be tied, and its values are those "
                        "of another tensor; nothing was loaded"
                    )
                if name not in made:
                    made[name] = part.clone(memory_format=torch.contiguous_format)
        return made

    def to_theirs(
        self, pairs: Sequence[TensorPair], shapes: Mapping[str, torch.Size]
    ) -> dict[str, Tensor]:
        """Their tensors from our present ones, copied; constants are left out, ties kept."""
        made: dict[tuple[tuple[str, ...], str], Tensor] = {}
        state, result = self.model.state_dict(), {}
        for pair in pairs:
            if pair.constant is None:
                key = (pair.ours, pair.transform.replace("spare", "same"))
                if key not in made:
                    parts = [state[name].detach() for name in pair.ours]
                    joined = TRANSFORMS[pair.transform].merge(
                        parts, shapes[pair.theirs], self.head_dim
                    )
                    made[key] = joined.clone(memory_format=torch.contiguous_format)
                result[pair.theirs] = made[key]
        return result

    def _find_pair(self, name: str) -> TensorPair | None:
        for rule, ours in self._matches(name):
            if all(part in self.state for part in ours):
                return TensorPair(name, ours, rule.transform)
        for constant in self.constants:
            if _match_layer(constant.theirs, name) is not None:
                return TensorPair(name, (), "same", constant)
        return None

    def _matches(self, name: str) -> Iterator[tuple[WeightRule, tuple[str, ...]]]:
        stem, _, leaf = name.rpartition(".")
        for rule in self.rules:
            for text, tail in ((name, ""), (stem, f".{leaf}")):
                layer = _match_layer(rule.theirs, text)
                if layer is not None:
                    yield rule, tuple(self._our_name(ours, layer) + tail for ours in rule.ours)

    def _our_name(self, ours: str, layer: int) -> str:
        """The name in our state: `decoder.{i}.self.norm` to `decoder.wiring.norms.6`."""
        stack_name, _, rest = ours.partition(".")
        stack = getattr(self.model, stack_name, None)
        if not isinstance(stack, Encoder | Decoder):
            return ours
        if not rest.startswith("{i}."):
            return ours.replace(".final_norm", ".wiring.final_norm")
        kinds = stack.plan.kinds
        _, kind, rest = rest.split(".", 2)
        site = layer * len(kinds) + kinds.index(kind)
        family = {"norm": "norms", "outer_norm": "outer_norms"}.get(rest)
        if family is None:
            return f"{stack_name}.sublayers.{site}.{rest}"
        norms = getattr(stack.wiring, family, ())
        place = layer if len(norms) == stack.plan.depth else site
        return f"{stack_name}.wiring.{family}.{place}"

    def _check_constant(self, constant: Constant, name: str, value: Tensor) -> None:
        if constant.value == "spare":
            return
        if constant.value == "zero":
            wanted = torch.zeros_like(value)
        else:
            stack = self.model.stacks[0]
            index = torch.arange(len(value), device=value.device)
            wanted = stack.positions.add(torch.zeros_like(value)[None], index)[0]
        if not torch.allclose(value, wanted, atol=1e-4):
            raise UserError(
                f"not understood: {name} should be {constant.why}, and it is not; nothing was "
                "loaded"
            )


def _match_layer(pattern: str, text: str) -> int | None:
    """The number of the layer, 0 where there is none; None if the text is another."""
    spelt = re.escape(pattern).replace(r"\{i\}", r"(\d+)")
    found = re.fullmatch(spelt, text)
    if found is None:
        return None
    return int(found[1]) if found.groups() else 0


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more
