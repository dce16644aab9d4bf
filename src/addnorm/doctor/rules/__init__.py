"""The audit: one rule or one small family a file. A new rule is one file and one line here."""

from addnorm.doctor.rules import (  # noqa: F401
    cloned_layers,
    decayed_gain,
    double_norm,
    dropout_after_norm,
    ffn_fed_unadded,
    ineffective_option,
    inert_norm,
    leaks,
    missing_final_norm,
    precision,
    shared_norm,
    skip_after_norm,
    skip_scale,
    wrong_axis,
)
from addnorm.doctor.rules.base import RULES, RuleContext, rule

__all__ = ["RULES", "RuleContext", "rule"]
