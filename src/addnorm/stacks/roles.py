"""Roles of the weights of sub-layers: query, key, value, out, ffn_in, ffn_out.

Roles are declared or found, in this order:

1. a `Sublayer` returns them from `roles()`;
2. the user declares them: `Stack(..., roles={"attn.q_proj": "query"})`, or an attribute `roles` of
   the module with such a mapping;
3. parts that are a torch.nn.MultiheadAttention or a `Sublayer` are known;
4. the rest is measured (`role_probe.py`), or, if the module cannot be run, guessed with a warning.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from addnorm.core.errors import WeightsNotInitializedWarning
from addnorm.core.plan import Plan, Site
from addnorm.stacks.declared_roles import PartOfWeight, match_paths, parse_declared_roles
from addnorm.stacks.forward_signature import as_sublayer, unwrap_compiled
from addnorm.stacks.role_guess import MIXING_ROLES, guess_roles, has_mixing_roles, warn_guessed
from addnorm.stacks.role_probe import ProbeCache, ProbeError, RowRoles, probe_roles
from addnorm.sublayers.base import Sublayer

OPAQUE_MODULES = (nn.RNNBase, ParametrizationList, nn.Embedding, nn.EmbeddingBag)
"""Modules whose weights have none of the roles."""
TABLE_NAMES = re.compile(r"bias|pos|table|embed|token", re.IGNORECASE)
"""Names of parameters with two axes that are not matrices, such as relative_position_bias_table."""


@dataclass(frozen=True)
class RoleWeight:
    """A weight, or a part of one, with its role."""

    role: str
    weight: Tensor
    """The parameter itself, or a view of some of its rows."""
    rows: int
    """Output features of the matrix that it belongs to; a fused weight holds several matrices."""
    gain: float = 1.0
    """Factor on the initial weight that the sub-layer needs, besides that of the wiring."""


class StackRoles:
    """Roles of all weights of a stack; those of plain modules are found when first needed."""

    def __init__(
        self, sublayers: Iterable[nn.Module], plan: Plan, declared: Mapping[str, Any]
    ) -> None:
        plain = [
            unwrap_compiled(module) if as_sublayer(module) is None else None for module in sublayers
        ]
        self.dim = plan.dim
        self.declared = match_paths(declared, plain)
        for module, own in zip(plain, self.declared, strict=True):
            if module is not None:
                parse_declared_roles(module, own)  # raises now, not at the first use
        self._found: dict[int, tuple[nn.Module, SublayerRoles]] = {}
        self._probed: ProbeCache = {}

    def iter_weights(self, site: Site, sublayer: nn.Module) -> Iterator[RoleWeight]:
        """Yield the weights of the sub-layer of a site."""
        described = as_sublayer(sublayer)
        if described is not None:
            for role, weight in described.roles():
                rows = weight.shape[0] if weight.ndim else 1
                yield RoleWeight(role, weight, rows, described.init_gain(role))
            return
        module, found = self._found.get(site.index, (None, None))
        if found is None or module is not sublayer:
            found = SublayerRoles.find(
                sublayer,
                kind=site.kind,
                dim=self.dim,
                declared=self.declared[site.index],
                cache=self._probed,
            )
            if not any(parameter.is_meta for parameter in sublayer.parameters()):
                self._found[site.index] = sublayer, found
        yield from found.iter_weights(sublayer)


class SublayerRoles:
    """Roles of the weights of one plain module, found once and looked up by name afterwards."""

    def __init__(self, parts: list[PartOfWeight]) -> None:
        self.parts = parts

    @classmethod
    def find(
        cls,
        module: nn.Module,
        *,
        kind: str,
        dim: int,
        declared: Mapping[str, Any],
        cache: ProbeCache,
    ) -> "SublayerRoles":
        """Find the roles of all weights of a plain module; warn where they are guessed.

        Args:
            module: sub-layer
            kind: kind of its site; weights of kind "ffn" without attention are ffn_in and ffn_out
            dim: features of the stream
            declared: roles by path, from the user
            cache: results of other modules of the stack
        """
        module = unwrap_compiled(module)
        parts = parse_declared_roles(module, declared) + _known_parts(module)
        parts = list({(part.name, part.start): part for part in reversed(parts)}.values())[::-1]
        done = {part.name for part in parts}
        opaque = [name for name, each in module.named_modules() if isinstance(each, OPAQUE_MODULES)]
        rest = {
            name: parameter
            for name, parameter in module.named_parameters()
            if name not in done and not any(_is_inside(name, path) for path in opaque)
        }
        biases = [
            PartOfWeight.from_weight(name, "bias", parameter)
            for name, parameter in rest.items()
            if parameter.ndim < 2 and name.endswith("bias")
        ]
        matrices = {name: parameter for name, parameter in rest.items() if parameter.ndim >= 2}
        left_out = {name for path in opaque for name in _list_matrices(module, path)} - done
        left_out |= {name for name in matrices if TABLE_NAMES.search(name.rpartition(".")[2])}
        matrices = {name: each for name, each in matrices.items() if name not in left_out}
        found, unused = _find_matrix_roles(module, matrices, parts, kind=kind, dim=dim, cache=cache)
        _warn_left_out(module, sorted(left_out | set(unused)))
        order = {name: index for index, (name, _) in enumerate(module.named_parameters())}
        weights = [part for part in (*parts, *found) if part.role != "bias"]
        weights.sort(key=lambda part: (order[part.name], part.start))
        return cls(weights + [part for part in parts if part.role == "bias"] + biases)

    def iter_weights(self, module: nn.Module) -> Iterator[RoleWeight]:
        """Yield the weights of a module with the same parameters."""
        parameters = dict(unwrap_compiled(module).named_parameters(remove_duplicate=False))
        for part in self.parts:
            if part.role:
                yield RoleWeight(part.role, part.select(parameters[part.name]), part.matrix_rows)


def _known_parts(module: nn.Module) -> list[PartOfWeight]:
    """Return the weights of modules whose roles are known: torch's attention, our sub-layers."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    parts = []
    for child in module.modules():
        if isinstance(child, nn.MultiheadAttention):
            parts += _attention_parts(child, names)
        elif isinstance(child, Sublayer):
            parts += [
                PartOfWeight.from_weight(names[id(weight)], role, weight)
                for role, weight in child.roles()
                if id(weight) in names
            ]
    return parts


def _attention_parts(attention: nn.MultiheadAttention, names: dict[int, str]) -> list[PartOfWeight]:
    roles = ("query", "key", "value")
    parts = []
    if attention.in_proj_weight is None:
        separate = (attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight)
        for role, weight in zip(roles, separate, strict=True):
            parts.append(PartOfWeight.from_weight(names[id(weight)], role, weight))
    else:
        weight, width = attention.in_proj_weight, attention.embed_dim
        for index, role in enumerate(roles):
            start = index * width
            parts.append(PartOfWeight(names[id(weight)], role, start, start + width, width))
    parts.append(
        PartOfWeight.from_weight(
            names[id(attention.out_proj.weight)], "out", attention.out_proj.weight
        )
    )
    biases = (attention.in_proj_bias, attention.out_proj.bias)
    parts += [
        PartOfWeight.from_weight(names[id(bias)], "bias", bias)
        for bias in biases
        if bias is not None
    ]
    return parts


def _find_matrix_roles(
    module: nn.Module,
    matrices: dict[str, nn.Parameter],
    known: Sequence[PartOfWeight],
    *,
    kind: str,
    dim: int,
    cache: ProbeCache,
) -> tuple[list[PartOfWeight], list[str]]:
    """Return the parts of weights without a declared role, and the names of unused weights."""
    has_attention = any(part.role in MIXING_ROLES for part in known)
    if not matrices or any(matrix.is_meta for matrix in matrices.values()):
        return [], []
    if len(matrices) == 1 and not any(part.role not in (None, "bias") for part in known):
        rows = {name: RowRoles(("out",) * len(each), False) for name, each in matrices.items()}
    else:
        rows = _measure_or_guess(module, matrices, known, kind=kind, dim=dim, cache=cache)
    has_attention = has_attention or has_mixing_roles(rows)
    is_ffn = kind == "ffn" and not has_attention
    inner, out = ("ffn_in", "ffn_out") if is_ffn else ("value", "out")
    role_names = {"inner": inner, "out": out, "query": "query", "key": "key", "value": "value"}
    parts = []
    for name, found in rows.items():
        if found.rows[0] == "unused":
            continue
        size = _matrix_rows(name, matrices, rows) if not has_attention else None
        for role, start, stop in found.iter_runs():
            count = size or found.rows.count(role)
            parts.append(PartOfWeight(name, role_names[role], start, stop, count, found.transposed))
    return parts, [name for name, found in rows.items() if found.rows[0] == "unused"]


def _measure_or_guess(
    module: nn.Module,
    matrices: dict[str, nn.Parameter],
    known: Sequence[PartOfWeight],
    *,
    kind: str,
    dim: int,
    cache: ProbeCache,
) -> dict[str, RowRoles]:
    """Return the roles of the rows of weights; warn where they do not follow from a run."""
    has_attention = any(part.role in MIXING_ROLES for part in known)
    guessed = guess_roles(matrices, last_is_output=not has_attention)
    try:
        result = probe_roles(module, list(matrices), dim=dim, cache=cache)
    except ProbeError as error:
        warn_guessed(module, guessed, f"it could not be run on random tokens ({error})")
        return guessed
    rows = result.rows
    has_out = any(part.role in ("out", "ffn_out") for part in known)
    if not has_out and not any(found.rows[0] == "out" for found in rows.values()):
        rows = rows | {name: each for name, each in guessed.items() if each.rows[0] == "out"}
        warn_guessed(module, rows, "no matrix computes the output features one by one")
    if kind == "ffn" or has_attention or has_mixing_roles(rows):
        return rows
    if has_mixing_roles(guessed):
        warn_guessed(module, guessed, "its queries and keys do not only mix tokens")
        return guessed
    if result.has_product:
        warn_guessed(module, rows, "it multiplies tokens, and no queries and keys were found")
    return rows


def _matrix_rows(
    name: str, matrices: Mapping[str, Tensor], rows: Mapping[str, RowRoles]
) -> int | None:
    """Return the rows of one of several matrices fused in a weight, as value and gate of a GLU.

    Several times as many features leave the weight as enter the last matrix.
    """
    size = len(rows[name].rows)
    widths = {
        matrix.shape[0] if rows[other].transposed else matrix.shape[1]
        for other, matrix in matrices.items()
    }
    outputs = {
        matrix.shape[0] if rows[other].transposed else matrix.shape[1]
        for other, matrix in matrices.items()
        if rows[other].rows[0] == "out"
    }
    if rows[name].rows[0] != "inner" or size in widths:
        return None
    return next((width for width in outputs if width < size and size % width == 0), None)


def _is_inside(name: str, path: str) -> bool:
    return not path or name.startswith(f"{path}.")


def _list_matrices(module: nn.Module, path: str) -> list[str]:
    return [
        name
        for name, each in module.named_parameters()
        if each.ndim >= 2 and _is_inside(name, path)
    ]


def _warn_left_out(module: nn.Module, names: Sequence[str]) -> None:
    if names:
        warnings.warn(
            f"weights of {type(module).__name__} whose roles are not known are not initialized: "
            f"{', '.join(names)}; declare them with Stack(roles={{{names[0]!r}: ...}}), or None to "
            "leave them unchanged",
            WeightsNotInitializedWarning,
            stacklevel=5,  # find, StackRoles.iter_weights, the method of Stack, its caller
        )
