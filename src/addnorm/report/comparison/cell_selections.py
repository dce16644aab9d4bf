"""Which cells a chart shows together: all arms at one setting, or each arm at its best."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from addnorm.comparison.analysis.arm_summary import Setting
from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.grid import Arm
from addnorm.report.comparison.cell_curves import CellSetting

BEST_LABEL = "each arm at its best setting"


@dataclass(frozen=True)
class Selection:
    """One setting for each arm, shown together in one chart."""

    depth: int
    label: str
    """The setting as text."""
    settings: dict[Arm, CellSetting]
    outcome: str = ""
    """How many arms trained at this setting."""

    @property
    def key(self) -> str:
        """The name of the selection in form fields and file names.

        >>> Selection(6, "lr 0.001, no warm-up", {}).key
        'depth-6-lr-0.001-no-warm-up'
        """
        return f"depth-{self.depth}-" + re.sub(r"[^\w.]+", "-", self.label)


def build_selections(study: Study) -> list[Selection]:
    """Return the selections of each depth, deepest first: best settings, then each setting."""
    selections = []
    for depth in sorted({each.cell.depth for each in study.cells}, reverse=True):
        cells = [each for each in study.cells if each.cell.depth == depth]
        best: dict[Arm, CellSetting] = {
            line.arm: (depth, line.best.warmup, line.best.lr)
            for line in study.summary
            if line.depth == depth and line.best is not None
        }
        if best:
            num_arms = len({each.cell.arm for each in cells})
            outcome = f"{len(best)} of {num_arms} arms trained"
            selections.append(Selection(depth, BEST_LABEL, best, outcome))
        for setting in dict.fromkeys(each.cell.setting for each in cells):
            at_setting = [each for each in cells if each.cell.setting == setting]
            arms = {each.cell.arm: (depth, *setting) for each in at_setting}
            label, outcome = Setting(*setting).format(), _describe_outcome(at_setting)
            selections.append(Selection(depth, label, arms, outcome))
    return selections


def find_most_contrasting(study: Study, selections: Sequence[Selection]) -> Selection:
    """Return the selection at which the arms differ most.

    That is the largest variance over arms of their progress, from 0 for arms that did not train to
    1 for the best cell. Selections that differ little count as equal; then more progress decides,
    then the greater depth.
    """
    by_setting: dict[tuple[Arm, CellSetting], list[float]] = {}
    for each in study.cells:
        if each.state != "waiting":
            key = (each.cell.arm, (each.cell.depth, *each.cell.setting))
            by_setting.setdefault(key, []).append(study.progress(each))

    def rank(selection: Selection) -> tuple[float, float, int]:
        arms = [by_setting[key] for key in selection.settings.items() if key in by_setting]
        values = [fmean(values) for values in arms]
        return round(pvariance(values or [0.0]), 2), round(math.fsum(values)), selection.depth

    return max(selections, key=rank)


def _describe_outcome(cells: Sequence[CellOutcome]) -> str:
    states_by_arm: dict[Arm, list[str]] = {}
    for each in cells:
        states_by_arm.setdefault(each.cell.arm, []).append(each.state)
    if all(each.state == "waiting" for each in cells):
        return "not run yet"
    trained = sum(all(state == "trained" for state in states) for states in states_by_arm.values())
    is_mixed = any(len(set(states)) > 1 for states in states_by_arm.values())
    return f"{trained} of {len(states_by_arm)} arms trained" + (
        " with every seed" if is_mixed else ""
    )
