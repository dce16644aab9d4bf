"""Roles of weights guessed from their names, for modules in which they cannot be measured."""

import re
import warnings
from collections.abc import Mapping

from torch import Tensor, nn

from addnorm.core.errors import RolesGuessedWarning
from addnorm.stacks.role_probe import RowRoles

MIXING_ROLES = ("query", "key")
"""Roles of the weights that decide how tokens are mixed."""

_PROJECTION = r"(?:w|to|fc|lin|linear|proj|in)?_?(?:{})_?(?:proj|projection|lin|linear|layer|net)?"
_NAMES = {
    ("query",): _PROJECTION.format("q|query|queries"),
    ("key",): _PROJECTION.format("k|key|keys"),
    ("value",): _PROJECTION.format("v|value|values"),
    ("query", "key", "value"): _PROJECTION.format("qkv|query_key_value|c_attn"),
    ("query", "key"): _PROJECTION.format("qk"),
    ("key", "value"): _PROJECTION.format("kv|key_value"),
    ("out",): _PROJECTION.format("o|out|output"),
}


def guess_roles(matrices: Mapping[str, Tensor], *, last_is_output: bool) -> dict[str, RowRoles]:
    """Guess roles from conventional names; the last of the other matrices writes to the stream."""
    guessed: dict[str, RowRoles] = {}
    for name, matrix in matrices.items():
        word = name.removesuffix(".weight").removesuffix("_weight").rpartition(".")[2].lower()
        roles = next((key for key, form in _NAMES.items() if re.fullmatch(form, word)), ("inner",))
        size = len(matrix)
        count, left = divmod(size, len(roles))
        rows = ("inner",) * size if left else tuple(role for role in roles for _ in range(count))
        guessed[name] = RowRoles(rows, False)
    others = [name for name, found in guessed.items() if found.rows[0] == "inner"]
    if last_is_output and others and not any(found.rows[0] == "out" for found in guessed.values()):
        guessed[others[-1]] = RowRoles(("out",) * len(matrices[others[-1]]), False)
    return guessed


def has_mixing_roles(rows: Mapping[str, RowRoles]) -> bool:
    """Return whether a row of a weight is a query or a key."""
    return any(role in MIXING_ROLES for found in rows.values() for role in found.rows)


def warn_guessed(module: nn.Module, rows: Mapping[str, RowRoles], reason: str) -> None:
    """Warn the caller of the stack that roles are guessed, and list them."""
    text = ", ".join(
        f"{name}: {'+'.join(dict.fromkeys(found.rows))}" for name, found in rows.items()
    )
    warnings.warn(
        f"roles of the weights of {type(module).__name__} are guessed, because {reason}: {text}; "
        "declare them with Stack(roles={...}) or an attribute `roles` of the module",
        RolesGuessedWarning,
        # _measure_or_guess, _find_matrix_roles, find, iter_weights, the method of Stack, its caller
        stacklevel=7,
    )
