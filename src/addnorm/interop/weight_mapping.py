"""Mapping of state dicts between transformers and addnorm, in both directions.

Every tensor of transformers must match a rule or a declared constant, and every tensor of ours must
be matched by one of theirs; anything left over is an error. For GPT-2, for example,

    transformer.h.3.attn.c_attn.weight

matches the rule `h.{i}.attn.c_attn -> ...  (stack_transpose)` of the family with i = 3. It is
transposed and split into `decoder.sublayers.6.q_proj.weight` and those of key and value (sub-layer
6 is the attention of layer 3, because a layer has two sub-layers).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.interop.family import Constant, Family, HeadVariant, WeightRule
from addnorm.models import Model
from addnorm.stacks import Decoder, Encoder
from addnorm.wirings.decorator_base import Decorator

Shapes = Sequence[torch.Size]


@dataclass(frozen=True)
class TensorTransform:
    """Transformation of one tensor of theirs to one or more of ours, and its inverse."""

    split: Callable[[Tensor, Shapes, int], Sequence[Tensor]]
    """Maps (their tensor, our shapes, head dim) to our tensors."""
    merge: Callable[[Sequence[Tensor], torch.Size, int], Tensor]
    """Maps (our tensors, their shape, head dim) to their tensor."""


def _transpose(x: Tensor) -> Tensor:
    return x.mT if x.ndim == 2 else x


def _split_rows(x: Tensor, shapes: Shapes, head_dim: int) -> Sequence[Tensor]:
    sizes = [shape[0] for shape in shapes]
    return torch.split(x, sizes) if sum(sizes) == len(x) else [x]


def _split_by_head(x: Tensor, shapes: Shapes, head_dim: int) -> Sequence[Tensor]:
    """Split rows of the layout (key heads, queries of the head + key + value, head_dim)."""
    keys = shapes[1][0] // head_dim
    rows = x.reshape(keys, -1, head_dim, *x.shape[1:])
    parts = rows[:, :-2], rows[:, -2:-1], rows[:, -1:]
    return [part.flatten(0, 2) for part in parts]


def _merge_by_head(parts: Sequence[Tensor], shape: torch.Size, head_dim: int) -> Tensor:
    keys = len(parts[1]) // head_dim
    rows = [part.reshape(keys, -1, head_dim, *part.shape[1:]) for part in parts]
    return torch.cat(rows, 1).flatten(0, 2)


def _split_gates(x: Tensor, shapes: Shapes, head_dim: int) -> Sequence[Tensor]:
    """Split rows of the layout (heads, query + gate, head_dim)."""
    rows = x.reshape(-1, 2, head_dim, *x.shape[1:])
    return [rows[:, 0].flatten(0, 1), rows[:, 1].flatten(0, 1)]


def _merge_gates(parts: Sequence[Tensor], shape: torch.Size, head_dim: int) -> Tensor:
    rows = [part.reshape(-1, 1, head_dim, *part.shape[1:]) for part in parts]
    return torch.cat(rows, 1).flatten(0, 2)


def _swap_halves(x: Tensor, head_dim: int) -> Tensor:
    """Swap the halves of every head's rows, which reverses the direction of rotary positions."""
    heads = x.reshape(-1, 2, head_dim // 2, *x.shape[1:])
    return heads.flip(1).reshape(x.shape)


TRANSFORMS = {
    "same": TensorTransform(lambda x, s, k: [x], lambda parts, s, k: parts[0]),
    # Conv1D stores the transposed matrix.
    "transpose": TensorTransform(
        lambda x, s, k: [_transpose(x)], lambda parts, s, k: _transpose(parts[0])
    ),
    "reshape": TensorTransform(
        lambda x, s, k: [x.reshape(s[0])] if x.numel() == s[0].numel() else [x],
        lambda parts, s, k: parts[0].reshape(s),
    ),
    # Second name of a tensor. If its values differ, the class does not read it: see match_tensors.
    "alias": TensorTransform(lambda x, s, k: [x], lambda parts, s, k: parts[0]),
    # Several matrices fused row-wise.
    "stack": TensorTransform(_split_rows, lambda parts, s, k: torch.cat(tuple(parts))),
    "stack_transpose": TensorTransform(
        lambda x, s, k: _split_rows(_transpose(x), s, k),
        lambda parts, s, k: _transpose(torch.cat(tuple(parts))),
    ),
    # Matrices of all experts in one tensor, (experts, rows, columns).
    "experts": TensorTransform(
        lambda x, s, k: _split_rows(x.flatten(0, 1), s, k),
        lambda parts, s, k: torch.cat(tuple(parts)).reshape(s),
    ),
    # Query and gate of every head, as in Qwen3-Next.
    "with_gate": TensorTransform(_split_gates, _merge_gates),
    # Rotary positions that turn the other way, as in nanochat.
    "swap_halves": TensorTransform(
        lambda x, s, k: [_swap_halves(x, k)], lambda parts, s, k: _swap_halves(parts[0], k)
    ),
    # Query, key and value fused head by head.
    "by_head": TensorTransform(_split_by_head, _merge_by_head),
}


@dataclass(frozen=True)
class TensorPair:
    """Matched tensor: its name in transformers and our names, or the constant that it is."""

    theirs: str
    ours: tuple[str, ...]
    transform: str
    constant: Constant | None = None


UNUSED_TENSOR = Constant("", "unused", "not read by the class")


class WeightMapper:
    """Mapping of the tensors of one model.

    Args:
        family: family of the model
        variant: class of the model
        prefix: prefix of the backbone's tensors in transformers
        model: addnorm model, possibly on the meta device
    """

    def __init__(self, family: Family, variant: HeadVariant, prefix: str, model: Model) -> None:
        prefix = "" if variant.without_prefix else prefix
        self.rules = [
            WeightRule(prefix + rule.theirs, rule.ours, rule.transform) for rule in family.tensors
        ]
        self.rules += variant.head_rules
        self.constants = [
            constant
            for each in family.constants
            for constant in (each, Constant(prefix + each.theirs, each.value, each.why))
        ]
        self.model = model
        self.absent_names = (*family.absent, *variant.absent)
        self.state = {
            name: value
            for name, value in model.state_dict().items()
            if not name.endswith("_extra_state")
        }
        config = model.config
        self.head_dim = config.head_dim or config.dim // config.heads

    def match_tensors(self, theirs: Mapping[str, Tensor]) -> list[TensorPair]:
        """Match every tensor of theirs; raise `UserError` if any of theirs or ours is left over."""
        matches = {name: self._find_pair(name) for name in theirs}
        unknown = [name for name, pair in matches.items() if pair is None]
        pairs = [pair for pair in matches.values() if pair is not None]
        originals = {pair.ours: theirs[pair.theirs] for pair in pairs if pair.transform != "alias"}
        pairs = [
            TensorPair(pair.theirs, (), "same", UNUSED_TENSOR)
            if pair.transform == "alias"
            and not torch.equal(originals[pair.ours], theirs[pair.theirs])
            else pair
            for pair in pairs
        ]
        missing = [name for name in self._find_unmatched(pairs) if not self._may_lack(name)]
        problems = [f"unknown tensors: {_format_names(unknown)}"] if unknown else []
        problems += (
            [f"missing tensors, by addnorm name: {_format_names(missing)}"] if missing else []
        )
        if problems:
            raise UserError(f"expected the tensors of its class, got {'; '.join(problems)}")
        return pairs

    def _find_unmatched(self, pairs: Sequence[TensorPair]) -> list[str]:
        """Return the names of our tensors without a counterpart."""
        used = {ours for pair in pairs for ours in pair.ours}
        return [name for name in self.state if name not in used]

    def _may_lack(self, name: str) -> bool:
        return bool(self.absent_names) and name.endswith(self.absent_names)

    def freeze_absent(self, pairs: Sequence[TensorPair]) -> list[str]:
        """Freeze our biases that the class lacks, and return their names."""
        names = self._find_unmatched(pairs)
        for name in names:
            self.model.get_parameter(name).requires_grad_(False)
        return names

    def to_ours(
        self, pairs: Sequence[TensorPair], theirs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return our state dict as a copy of their tensors."""
        like = next(iter(theirs.values()))
        state: dict[str, Tensor] = {
            name: like.new_zeros(self.state[name].shape) for name in self._find_unmatched(pairs)
        }
        for pair in pairs:
            value = theirs[pair.theirs].detach()
            if pair.constant is not None:
                self._check_constant(pair.constant, pair.theirs, value)
                continue
            shapes = [self.state[name].shape for name in pair.ours]
            parts = TRANSFORMS[pair.transform].split(value, shapes, self.head_dim)
            if [part.shape for part in parts] != shapes:
                expected = ", ".join(
                    f"{name} {tuple(shape)}" for name, shape in zip(pair.ours, shapes, strict=True)
                )
                raise UserError(
                    f"{pair.theirs}: expected a shape that gives {expected}, got "
                    f"{tuple(value.shape)}"
                )
            for name, part in zip(pair.ours, parts, strict=True):
                if name in state and not torch.equal(state[name], part):
                    raise UserError(
                        f"{pair.theirs}: expected the values of the tensor that it is tied to, got "
                        "others"
                    )
                if name not in state:
                    state[name] = part.clone(memory_format=torch.contiguous_format)
        return state

    def to_theirs(
        self, pairs: Sequence[TensorPair], shapes: Mapping[str, torch.Size]
    ) -> dict[str, Tensor]:
        """Return their tensors as a copy of our current ones, without constants.

        Tied tensors are one tensor object under several names.
        """
        merged: dict[tuple[tuple[str, ...], str], Tensor] = {}
        state, result = self.model.state_dict(), {}
        changed = [
            name
            for pair in pairs
            for name in pair.ours
            if not isinstance(state.get(name), Tensor) or not state[name].is_floating_point()
        ]
        if changed:
            raise UserError(
                f"to_hf: expected the weights that from_hf created, got none of {changed[0]}; "
                "undo replaced modules, pruning and quantization, and merge adapters first"
            )
        for name in self._find_unmatched(pairs):
            if bool(state[name].any()):
                raise UserError(
                    f"to_hf: expected {name} to stay 0, because the class has no such bias, got "
                    "other values"
                )
        for pair in pairs:
            if pair.constant is None:
                key = (pair.ours, pair.transform.replace("alias", "same"))
                if key not in merged:
                    parts = [state[name].detach() for name in pair.ours]
                    value = TRANSFORMS[pair.transform].merge(
                        parts, shapes[pair.theirs], self.head_dim
                    )
                    merged[key] = value.clone(memory_format=torch.contiguous_format)
                result[pair.theirs] = merged[key]
        return result

    def _find_pair(self, name: str) -> TensorPair | None:
        # Several families share a list of rules: a match counts only if our model has the tensor.
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
                    names = (self._our_name(ours, layer) + tail for ours in rule.ours)
                    yield rule, self._expand_experts(tuple(names))

    def _expand_experts(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return names with `{e}` once for every expert."""
        if not any("{e}" in name for name in names):
            return names
        experts = range(self.model.config.experts or 0)
        return tuple(name.replace("{e}", str(expert)) for expert in experts for name in names)

    def _our_name(self, ours: str, layer: int) -> str:
        """Resolve a name of a rule to one of our state dict.

        With layer 3 of a decoder, `decoder.{i}.self.norm` becomes `decoder.wiring.norms.6`.
        """
        stack_name, _, rest = ours.partition(".")
        stack = getattr(self.model, stack_name, None)
        if not isinstance(stack, Encoder | Decoder):
            return ours
        path, wiring = "wiring", stack.wiring
        while isinstance(wiring, Decorator):  # Granite: scaled(pre_ln)
            path, wiring = f"{path}.inner", wiring.inner
        if not rest.startswith("{i}."):
            return ours.replace(".final_norm", f".{path}.final_norm")
        kinds = stack.plan.kinds
        _, kind, rest = rest.split(".", 2)
        site = layer * len(kinds) + kinds.index(kind)
        attribute = {"norm": "norms", "outer_norm": "outer_norms"}.get(rest)
        if attribute is None:
            return f"{stack_name}.sublayers.{site}.{rest}"
        norms = getattr(wiring, attribute, ())
        index = layer if len(norms) == stack.plan.depth else site  # one norm per layer, or per site
        return f"{stack_name}.{path}.{attribute}.{index}"

    def _check_constant(self, constant: Constant, name: str, value: Tensor) -> None:
        if constant.value == "unused":
            return
        if constant.value == "zero":
            expected = torch.zeros_like(value)
        else:
            stack = self.model.stacks[0]
            index = torch.arange(len(value), device=value.device)
            expected = stack.positions.add(torch.zeros_like(value)[None], index)[0]
        if not torch.allclose(value, expected, atol=1e-4):
            raise UserError(f"{name}: expected {constant.why}, got other values")


def _match_layer(pattern: str, text: str) -> int | None:
    """Return the layer number in a name (0 without `{i}`), or None if it does not match."""
    match = re.fullmatch(re.escape(pattern).replace(r"\{i\}", r"(\d+)"), text)
    if match is None:
        return None
    return int(match[1]) if match.groups() else 0


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more
