"""The summary of a comparison as a table for terminals."""

import math
from typing import TYPE_CHECKING

from rich.table import Table

from addnorm.comparison.outcomes import STATES

if TYPE_CHECKING:
    from addnorm.comparison.analysis.study import Study
    from addnorm.comparison.analysis.summary import ArmSummary


def summary_table(study: "Study") -> Table:
    """A row for each arm at each depth; columns of states that nobody is in are left out."""
    lines = study.summary
    used = [state for state in STATES if any(line.states.get(state) for line in lines)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column("arm", style="bold", no_wrap=True)
    for name in ("depth", *used):
        table.add_column(name, justify="right")
    for name in (
        "stable lr",
        "best setting",
        "valid loss",
        study.score,
        "behind",
        "speed",
        "memory",
    ):
        table.add_column(name)
    for line in lines:
        table.add_row(
            line.arm.name,
            str(line.depth),
            *(str(line.states.get(state, 0)) for state in used),
            format_stable_range(line),
            line.best.format() if line.best else "-",
            line.loss.format() if line.loss else "-",
            line.score.format(1 if study.score == "chrf" else 3) if line.score else "-",
            format_gap(line),
            "-" if math.isnan(line.speed) else f"{line.speed:.2f}",
            "-" if math.isnan(line.memory) else f"{line.memory / 2**20:,.0f} MB",
        )
    table.caption = None
    return table


def format_stable_range(line: "ArmSummary") -> str:
    """Learning rates at which every seed trained, by warm-up."""
    if len(line.stable) == 1:
        return line.stable[0].format()
    return "; ".join(
        f"{each.format()} with warm-up {each.warmup}" if each.warmup else f"{each.format()} without"
        for each in line.stable
    )


def format_gap(line: "ArmSummary") -> str:
    """How far behind the best arm at this depth."""
    if line.behind is None:
        return "best" if line.leads else "-"
    told = line.behind.format()
    return told if line.behind.excludes_zero or line.behind.half is None else f"{told} (noise)"
