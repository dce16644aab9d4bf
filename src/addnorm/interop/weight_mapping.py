"""Tensors from theirs to ours and back: every one is used or explained."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.interop.family import Constant, Family, Form, Rule
from addnorm.models import Model
from addnorm.stacks import Decoder, Encoder

Shapes = Sequence[torch.Size]


@dataclass(frozen=True)
class Way:
    """How one tensor of theirs becomes one or more of ours, and back."""

    apart: Callable[[Tensor, Shapes, int], Sequence[Tensor]]
    """From a tensor of theirs, the shapes of ours and the features of a head."""
    together: Callable[[Sequence[Tensor], torch.Size, int], Tensor]
    """From tensors of ours, the shape of theirs and the features of a head."""


def _turned(x: Tensor) -> Tensor:
    return x.mT if x.ndim == 2 else x


def _stacked(x: Tensor, shapes: Shapes, head_dim: int) -> Sequence[Tensor]:
    sizes = [shape[0] for shape in shapes]
    return torch.split(x, sizes) if sum(sizes) == len(x) else [x]


def _by_head(x: Tensor, shapes: Shapes, head_dim: int) -> Sequence[Tensor]:
    """(key heads, queries of each + key + value, head_dim) are the rows."""
    keys = shapes[1][0] // head_dim
    rows = x.reshape(keys, -1, head_dim, *x.shape[1:])
    parts = rows[:, :-2], rows[:, -2:-1], rows[:, -1:]
    return [part.flatten(0, 2) for part in parts]


def _joined_by_head(parts: Sequence[Tensor], shape: torch.Size, head_dim: int) -> Tensor:
    keys = len(parts[1]) // head_dim
    rows = [part.reshape(keys, -1, head_dim, *part.shape[1:]) for part in parts]
    return torch.cat(rows, 1).flatten(0, 2)


WAYS = {
    "same": Way(lambda x, s, k: [x], lambda parts, s, k: parts[0]),
    # Conv1D keeps its matrix the other way round.
    "transpose": Way(lambda x, s, k: [_turned(x)], lambda parts, s, k: _turned(parts[0])),
    "reshape": Way(
        lambda x, s, k: [x.reshape(s[0])] if x.numel() == s[0].numel() else [x],
        lambda parts, s, k: parts[0].reshape(s),
    ),
    # A second name of a tensor, in models that do not tie a tensor that nothing reads.
    "spare": Way(lambda x, s, k: [x], lambda parts, s, k: parts[0]),
    # Several matrices in one, one below the other.
    "stack": Way(_stacked, lambda parts, s, k: torch.cat(tuple(parts))),
    "stack_transpose": Way(
        lambda x, s, k: _stacked(_turned(x), s, k),
        lambda parts, s, k: _turned(torch.cat(tuple(parts))),
    ),
    # Query, key and value in one, head by head.
    "by_head": Way(_by_head, _joined_by_head),
}


@dataclass(frozen=True)
class Pair:
    """A tensor of theirs and what it is with us; no names where it is a constant."""

    theirs: str
    ours: tuple[str, ...]
    way: str
    constant: Constant | None = None


SPARE = Constant("", "spare", "read by nothing")


class Carrier:
    """Carries the tensors of one model of a family."""

    def __init__(self, family: Family, form: Form, prefix: str, model: Model) -> None:
        before = "" if form.bare else prefix
        self.rules = [*(Rule(before + rule.theirs, rule.ours, rule.way) for rule in family.tensors)]
        self.rules += [Rule(rule.theirs, rule.ours, rule.way) for rule in form.heads]
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

    def pairs(self, theirs: Mapping[str, Tensor]) -> list[Pair]:
        """What every tensor of theirs is; refused if any of theirs or of ours is left over."""
        found = {name: self._pair(name) for name in theirs}
        strange = [name for name, pair in found.items() if pair is None]
        pairs = [pair for pair in found.values() if pair is not None]
        first = {pair.ours: theirs[pair.theirs] for pair in pairs if pair.way != "spare"}
        pairs = [
            Pair(pair.theirs, (), "same", SPARE)
            if pair.way == "spare" and not torch.equal(first[pair.ours], theirs[pair.theirs])
            else pair
            for pair in pairs
        ]
        used = {ours for pair in pairs for ours in pair.ours}
        missing = [name for name in self.state if name not in used]
        if strange or missing:
            told = [f"tensors that have no place: {_some(strange)}"] if strange else []
            told += [f"tensors that are missing, in our names: {_some(missing)}"] if missing else []
            raise UserError(f"not understood: {'; '.join(told)}; nothing was loaded")
        return pairs

    def ours(self, pairs: Sequence[Pair], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our state from theirs, copied."""
        made: dict[str, Tensor] = {}
        for pair in pairs:
            value = theirs[pair.theirs].detach()
            if pair.constant is not None:
                self._check(pair.constant, pair.theirs, value)
                continue
            shapes = [self.state[name].shape for name in pair.ours]
            parts = WAYS[pair.way].apart(value, shapes, self.head_dim)
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

    def theirs(self, pairs: Sequence[Pair], shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
        """Their tensors from our present ones, copied; constants are left out, ties kept."""
        made: dict[tuple[tuple[str, ...], str], Tensor] = {}
        state, result = self.model.state_dict(), {}
        for pair in pairs:
            if pair.constant is None:
                key = (pair.ours, pair.way.replace("spare", "same"))
                if key not in made:
                    parts = [state[name].detach() for name in pair.ours]
                    joined = WAYS[pair.way].together(parts, shapes[pair.theirs], self.head_dim)
                    made[key] = joined.clone(memory_format=torch.contiguous_format)
                result[pair.theirs] = made[key]
        return result

    def _pair(self, name: str) -> Pair | None:
        for rule, ours in self._matches(name):
            if all(part in self.state for part in ours):
                return Pair(name, ours, rule.way)
        for constant in self.constants:
            if _match(constant.theirs, name) is not None:
                return Pair(name, (), "same", constant)
        return None

    def _matches(self, name: str) -> Iterator[tuple[Rule, tuple[str, ...]]]:
        stem, _, leaf = name.rpartition(".")
        for rule in self.rules:
            for text, tail in ((name, ""), (stem, f".{leaf}")):
                layer = _match(rule.theirs, text)
                if layer is not None:
                    yield rule, tuple(self._name(ours, layer) + tail for ours in rule.ours)

    def _name(self, ours: str, layer: int) -> str:
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

    def _check(self, constant: Constant, name: str, value: Tensor) -> None:
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


def _match(pattern: str, text: str) -> int | None:
    """The number of the layer, 0 where there is none; None if the text is another."""
    spelt = re.escape(pattern).replace(r"\{i\}", r"(\d+)")
    found = re.fullmatch(spelt, text)
    if found is None:
        return None
    return int(found[1]) if found.groups() else 0


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more
