"""Registries, cards, call strings, plans, errors, rows, seeds, files. Does not import torch."""

from addnorm.core.calls import Call
from addnorm.core.cards import Card
from addnorm.core.errors import (
    ArrangementMismatchError,
    InnerNormsIgnoredWarning,
    UnknownNameError,
    UserError,
)
from addnorm.core.plan import ROLES, Plan, Plugs, Shape, Site
from addnorm.core.registry import Registry
from addnorm.core.rows import read_rows, write_rows
from addnorm.core.seeds import derive_seed

__all__ = [
    "ROLES",
    "Call",
    "Card",
    "InnerNormsIgnoredWarning",
    "Plan",
    "Plugs",
    "Registry",
    "Shape",
    "Site",
    "UnknownNameError",
    "UserError",
    "ArrangementMismatchError",
    "derive_seed",
    "read_rows",
    "write_rows",
]
