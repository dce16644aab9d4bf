"""The audit: one rule or one small family a file. A new rule is one file and one line here."""

from addnorm.doctor.rules import (  # noqa: F401
    axis,
    cloned,
    decay,
    double,
    dropout,
    feed,
    final,
    inert,
    leaks,
    option,
    precision,
    scale,
    shared,
    skip,
)
from addnorm.doctor.rules.base import RULES, Case, rule

__all__ = ["RULES", "Case", "rule"]
