"""Registry of audit rules."""

from collections.abc import Callable, Iterable

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext

Rule = Callable[[RuleContext], Iterable[Finding]]
RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a rule under its id."""

    def add(function: Rule) -> Rule:
        if name in RULES:
            raise ValueError(f"rule {name!r} is registered twice")
        RULES[name] = function
        return function

    return add
