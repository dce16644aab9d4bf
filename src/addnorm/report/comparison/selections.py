"""Which cells are drawn together: all arms at one setting, or each at its own best."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.analysis.summary import Setting as Chosen
from addnorm.comparison.grid import Arm

Setting = tuple[int, int | None, float]


@dataclass(frozen=True)
class Selection:
    """One cell setting for each arm that has it, to be seen in one chart."""

    depth: int
    label: str
    """What is chosen, in words."""
    settings: dict[Arm, Setting]
    outcome: str = ""
    """How many arms trained there."""

    @property
    def key(self) -> str:
        """A name for programs and files.

        >>> Selection(6, "lr 0.001, no warm-up", {}).key
        'depth-6-lr-0.001-no-warm-up'
        """
        return f"depth-{self.depth}-" + re.sub(r"[^\w.]+", "-", self.label)


def build_selections(study: Study) -> list[Selection]:
    """At each depth, deepest first: each arm at its best, then every setting."""
    made = []
    for depth in sorted({each.cell.depth for each in study.cells}, reverse=True):
        best = {
            line.arm: (depth, line.best.warmup, line.best.lr)
            for line in study.summary
            if line.depth == depth and line.best is not None
        }
        if best:
            tried = {each.cell.arm for each in study.cells if each.cell.depth == depth}
            words = f"{len(best)} of {len(tried)} arms trained"
            made.append(Selection(depth, "each arm at its best setting", best, words))
        here = [each for each in study.cells if each.cell.depth == depth]
        for setting in dict.fromkeys(each.cell.setting for each in here):
            there = [each for each in here if each.cell.setting == setting]
            arms = {each.cell.arm: (depth, *setting) for each in there}
            told = Chosen(*setting).format()
            made.append(Selection(depth, told, arms, _describe_outcome(there)))
    return made


def find_most_contrasting(study: Study, selections: Sequence[Selection]) -> Selection:
    """The setting at which arms differ most in what became of them; the deepest of equals."""

    trained = {
        (each.cell.arm, each.cell.depth, *each.cell.setting)
        for each in study.cells
        if each.state == "trained"
    }

    def rank(selection: Selection) -> tuple[int, int, int]:
        well = sum((arm, *setting) in trained for arm, setting in selection.settings.items())
        return min(well, len(selection.settings) - well), well, selection.depth

    return max(selections, key=rank)


def _describe_outcome(cells: Sequence[CellOutcome]) -> str:
    arms: dict[Arm, list[str]] = {}
    for each in cells:
        arms.setdefault(each.cell.arm, []).append(each.state)
    if all(state == "waiting" for states in arms.values() for state in states):
        return "not run yet"
    trained = sum(all(state == "trained" for state in states) for states in arms.values())
    mixed = any(len(set(states)) > 1 for states in arms.values())
    return f"{trained} of {len(arms)} arms trained" + (" with every seed" if mixed else "")
