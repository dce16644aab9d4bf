"""Summary of a comparison as a terminal table."""

import math
from typing import TYPE_CHECKING

from rich.table import Table

from addnorm.comparison.outcomes import STATES

if TYPE_CHECKING:
    from addnorm.comparison.analysis.arm_summary import ArmSummary
    from addnorm.comparison.analysis.study import Study


def summary_table(study: "Study") -> Table:
    """Return a table with one row per arm and depth; empty state columns are omitted."""
    arms = study.summary
    states = [state for state in STATES if any(arm.states.get(state) for arm in arms)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("arm", style="bold", no_wrap=True)
    for name in ("depth", *states):
        table.add_column(name, justify="right")
    objective = study.task.objective
    label = "valid loss" if objective.column == "loss" else objective.label
    scores = [study.score.label] if study.has_scores else []
    for name in ("stable lr", "best setting", label, *scores, "gap to best", "speed", "memory"):
        table.add_column(name)
    for arm in arms:
        table.add_row(
            arm.arm.name,
            str(arm.depth),
            *(str(arm.states.get(state, 0)) for state in states),
            format_stable_range(arm),
            arm.format_best(),
            arm.value.format() if arm.value else "-",
            *([arm.score.format(study.score.digits) if arm.score else "-"] if scores else []),
            format_gap(arm),
            "-" if math.isnan(arm.speed) else f"{arm.speed:.2f}",
            "-" if math.isnan(arm.memory) else f"{arm.memory / 2**20:,.0f} MB",
        )
    return table


def format_stable_range(arm: "ArmSummary") -> str:
    """Format the learning rates at which all seeds trained, for each warm-up."""
    if len(arm.stable) == 1:
        return arm.stable[0].format()
    return "; ".join(
        f"{each.format()} with warm-up {each.warmup}" if each.warmup else f"{each.format()} without"
        for each in arm.stable
    )


def format_gap(arm: "ArmSummary") -> str:
    """Format the difference to the best arm of the same depth."""
    if arm.behind is None:
        return "best" if arm.leads else "-"
    gap = arm.behind.format()
    return gap if arm.behind.excludes_zero or arm.behind.half is None else f"{gap} (noise)"
