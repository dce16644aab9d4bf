"""Outputs of all arms for the same held-out inputs."""

from typing import Any

from markupsafe import Markup

from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.grid import Arm
from addnorm.core.errors import UserError
from addnorm.report.format import MISSING
from addnorm.report.html.page import Note, Part, Table
from addnorm.report.theme import ArmStyle

CORRECT_MARK = "✓"


def build_sample_outputs(study: Study, styles: dict[str, ArmStyle]) -> list[Part]:
    """Return one table for each input, with a row for each arm."""
    try:
        examples = study.task.read_examples(study.folder)
    except (UserError, OSError):
        examples = []
    if not study.task.is_drawn:
        return [Note("A task of your own has no sample outputs.")]
    if not examples:
        return [Note("No sample outputs: the comparison has no records to evaluate.")]
    cells = {arm: _representative_cell(study, arm) for arm in study.spec.arms()}
    if not any(cells.values()):
        return [Note("No sample outputs yet: no cell has finished.")]
    parts: list[Part] = []
    for index, (text, expected) in enumerate(examples):
        rows: list[tuple[Any, ...]] = [
            (styles[arm.name], *_sample_output(study, cell, index, expected))
            for arm, cell in cells.items()
        ]
        if expected:
            rows = [(Markup("<b>expected</b>"), Markup("<b>{}</b>").format(expected), ""), *rows]
        head = ("arm", "output", "correct") if expected else ("arm", "continuation")
        parts.append(Table(text, head, [row[: len(head)] for row in rows]))
    return [*parts, Note(_describe_cells(cells))]


def _representative_cell(study: Study, arm: Arm) -> CellOutcome | None:
    """Return the cell whose outputs are shown for an arm; None if no cell has any.

    It is taken from the greatest depth with outputs: the first seed that trained at the arm's best
    setting, or else the first cell that finished.
    """
    cells = [each for each in study.cells if each.cell.arm == arm and each.end and each.end.samples]
    if not cells:
        return None
    depth = max(each.cell.depth for each in cells)
    cells = [each for each in cells if each.cell.depth == depth]
    line = next((a for a in study.summary if a.arm == arm and a.depth == depth), None)
    best = (line.best.warmup, line.best.lr) if line is not None and line.best else None
    at_best = [each for each in cells if each.state == "trained" and each.cell.setting == best]
    return (at_best or cells)[0]


def _sample_output(
    study: Study, outcome: CellOutcome | None, index: int, expected: str
) -> tuple[str, str]:
    """Return the output for an example, and a check mark if it is correct."""
    if outcome is None or outcome.end is None or index >= len(outcome.end.samples):
        return MISSING, ""
    text = outcome.end.samples[index]
    return text, CORRECT_MARK if study.task.is_correct(text, expected) else ""


def _describe_cells(outcomes: dict[Arm, CellOutcome | None]) -> str:
    sources = [
        f"{arm.name}: no finished cell"
        if outcome is None
        else f"{arm.name}: {outcome.cell.name} ({outcome.state})"
        for arm, outcome in outcomes.items()
    ]
    return "Outputs come from these cells. " + "; ".join(sources) + "."
