"""The floor: names, cards, call strings, plans, errors, rows, seeds. It imports no torch."""

from addnorm.core.calls import Call
from addnorm.core.cards import Card
from addnorm.core.errors import InnerNormsLeftOut, UnknownName, UserError, WrongArrangement
from addnorm.core.plan import ROLES, Plan, Plugs, Shape, Site
from addnorm.core.registry import Registry
from addnorm.core.rows import read_rows, write_rows
from addnorm.core.seeds import derive_seed

__all__ = [
    "ROLES",
    "Call",
    "Card",
    "InnerNormsLeftOut",
    "Plan",
    "Plugs",
    "Registry",
    "Shape",
    "Site",
    "UnknownName",
    "UserError",
    "WrongArrangement",
    "derive_seed",
    "read_rows",
    "write_rows",
]
