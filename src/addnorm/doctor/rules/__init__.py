"""The audit: one rule or one small family a file. A new rule is one file and one line here."""

from addnorm.doctor.rules import (
    axis as axis,
    cloned as cloned,
    decay as decay,
    double as double,
    dropout as dropout,
    feed as feed,
    final as final,
    inert as inert,
    leaks as leaks,
    option as option,
    precision as precision,
    scale as scale,
    shared as shared,
    skip as skip,
)
from addnorm.doctor.rules.base import RULES, Case, rule

__all__ = ["RULES", "Case", "rule"]
