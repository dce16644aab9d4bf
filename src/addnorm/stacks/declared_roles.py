"""Roles of weights that a user declares by path.

{"attn.q_proj": "query"}                                  a module or a parameter
{"attn.qkv": ("query", "key", "value")}                   equal parts of a fused weight
{"attn.qkv": {"query": 64, "key": 16, "value": 16}}       parts with these numbers of rows
{"attn.bias_table": None}                                 not initialized
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from addnorm.core.errors import UserError, closest_names, unknown_name_message
from addnorm.stacks.init import ROLES


@dataclass(frozen=True)
class PartOfWeight:
    """Rows of a weight with one role."""

    name: str
    """Name of the parameter in the sub-layer."""
    role: str | None
    """Role; None leaves the weight unchanged."""
    start: int
    stop: int
    """The part is rows `start` to `stop - 1`."""
    matrix_rows: int
    """Rows of the matrix that these rows belong to."""
    transposed: bool = False
    """Whether the output features are the columns of the weight."""

    @classmethod
    def from_weight(cls, name: str, role: str | None, weight: Tensor) -> "PartOfWeight":
        """Return all rows of a weight."""
        rows = weight.shape[0] if weight.ndim else 1
        return cls(name, role, 0, rows, rows)

    def select(self, weight: Tensor) -> Tensor:
        """Return the rows as a view, or the weight itself if they are all of it."""
        weight = weight.mT if self.transposed else weight
        is_whole = weight.ndim == 0 or (self.start == 0 and self.stop == len(weight))
        return weight if is_whole else weight[self.start : self.stop]


def parse_declared_roles(module: nn.Module, declared: Mapping[str, Any]) -> list[PartOfWeight]:
    """Return the parts of weights that are declared for a module.

    Attributes `roles` of the module and its parts count too; `declared` comes first.

    Raises:
        UserError: unknown path or role, or parts that do not fit the weight
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    entries: dict[str, Any] = {}
    for path, child in module.named_modules():
        own = child.__dict__.get("roles", getattr(type(child), "roles", None))
        if isinstance(own, Mapping):
            prefix = f"{path}." if path else ""
            entries |= {f"{prefix}{name}": role for name, role in own.items()}
    entries |= declared
    return [
        part
        for path, role in entries.items()
        for part in _parse_entry(path, role, _find_parameter(path, parameters), parameters)
    ]


def match_paths(
    declared: Mapping[str, Any], modules: Sequence[nn.Module | None]
) -> list[dict[str, Any]]:
    """Return the declared roles of each plain module of a stack, by path inside the module.

    Args:
        declared: roles by path: `attn.q_proj` in every module that has it, or
            `sublayers.3.attn.q_proj` in one
        modules: plain modules in the order of the stack; None for others

    Raises:
        UserError: a path that no plain module has
    """
    if not isinstance(declared, Mapping):
        raise UserError(
            "roles: expected a mapping from paths to roles, such as {'attn.q_proj': 'query'}, got "
            f"{type(declared).__name__}"
        )
    paths = [set() if module is None else _list_paths(module) for module in modules]
    matched: list[dict[str, Any]] = [{} for _ in modules]
    for path, role in declared.items():
        owners = [index for index, known in enumerate(paths) if path in known]
        inner = path
        if not owners:
            _, _, rest = str(path).partition("sublayers.")
            number, _, inner = rest.partition(".")
            index = int(number) if number.isdecimal() else -1
            owners = [index] if 0 <= index < len(paths) and inner in paths[index] else []
        if not owners:
            raise UserError(_unknown_path_message(path, set().union(*paths)))
        for index in owners:
            matched[index][inner] = role
    return matched


def _list_paths(module: nn.Module) -> set[str]:
    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return names | {name.removesuffix(".weight") for name in names}


def _find_parameter(path: Any, parameters: Mapping[str, Tensor]) -> str:
    for name in (path, f"{path}.weight"):
        if name in parameters:
            return name
    inside = [name for name in parameters if name.startswith(f"{path}.")]
    if inside:
        raise UserError(
            f"roles: expected the path of one weight, got {path!r} with several: "
            f"{', '.join(inside[:4])}"
        )
    known = {name.removesuffix(".weight") for name in parameters}
    raise UserError(_unknown_path_message(path, known))


def _unknown_path_message(path: Any, known: Iterable[str]) -> str:
    known = sorted(known)
    close = closest_names(str(path), known)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"roles: expected the path of a weight, got {path!r}; {hint}Known: {shown or 'none'}"


def _parse_entry(
    path: str, role: Any, name: str, parameters: Mapping[str, Tensor]
) -> list[PartOfWeight]:
    weight = parameters[name]
    if role is None or isinstance(role, str):
        if role is not None:
            _check_role(path, role)
            if (role == "bias") != (weight.ndim < 2):
                raise UserError(
                    f"roles[{path!r}]: expected {'bias' if weight.ndim < 2 else 'another role'} "
                    f"for a weight of shape {tuple(weight.shape)}, got {role!r}"
                )
        return [PartOfWeight.from_weight(name, role, weight)]
    if isinstance(role, Mapping):
        roles, sizes = list(role), list(role.values())
    elif isinstance(role, Sequence):
        roles = list(role)
        sizes = [weight.shape[0] // len(roles)] * len(roles) if roles and weight.ndim else []
    else:
        roles, sizes = [], []
    for each in roles:
        _check_role(path, each)
    are_counts = all(isinstance(size, int) and size > 0 for size in sizes)
    if weight.ndim < 2 or not sizes or not are_counts or sum(sizes) != weight.shape[0]:
        raise UserError(
            f"roles[{path!r}]: expected a role, or roles whose rows add up to "
            f"{weight.shape[0] if weight.ndim else 1}, such as ('query', 'key', 'value') or "
            f"{{'query': 64, 'key': 16, 'value': 16}}, got {role!r}"
        )
    parts, start = [], 0
    for each, size in zip(roles, sizes, strict=True):
        parts.append(PartOfWeight(name, each, start, start + size, size))
        start += size
    return parts


def _check_role(path: str, role: Any) -> None:
    if role not in ROLES:
        raise UserError(f"roles[{path!r}]: {unknown_name_message('role', str(role), ROLES)}")
