"""What the arms are, drawn and cited; and what each answers to the same inputs."""

from dataclasses import replace
from functools import cache
from typing import Any

from markupsafe import Markup

from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.grid import DEFAULT_NORM, Arm, has_norms
from addnorm.core.errors import UserError
from addnorm.norms.base import registry as norms
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.layout import Diagram, compute_layout
from addnorm.report.diagram.svg import render_svg
from addnorm.report.diagram.symbols import format_formula
from addnorm.report.html.page import Column, Facts, Figure, Note, Part, Table
from addnorm.report.theme import ArmStyle
from addnorm.train.schedules.base import recommended_schedule
from addnorm.wirings.base import registry as wirings

CORRECT_MARK = "✓"


def build_arm_cards(study: Study) -> list[Part]:
    """For each arm: its block, its formula, its paper."""
    made: list[Part] = []
    for arm in study.spec.arms():
        card = wirings.card(wirings.resolve(arm.wiring).name)
        facts = {"wiring": arm.wiring, "in a sentence": card.summary}
        facts |= {"formula": format_formula(card.formula), "paper": card.paper}
        if has_norms(arm.wiring):
            norm = norms.card(norms.resolve(arm.norm).name)
            facts |= {
                "norm N": f"{arm.norm}: {format_formula(norm.formula)}",
                "its paper": norm.paper,
            }
        if arm.own:
            facts["schedule"] = recommended_schedule(arm.wiring)
        drawn = build_arm_diagram(study, arm)
        pictures = [] if drawn is None else [_diagram_figure(drawn)]
        made.append(Column((*pictures, Facts(arm.name, facts))))
    return made


def build_arm_diagram(study: Study, arm: Arm) -> Diagram | None:
    """The block of an arm at the greatest depth; None if it cannot be drawn."""
    depth = max(each.cell.depth for each in study.cells if each.cell.arm == arm)
    return _cached_diagram(arm.wiring, arm.norm, depth, study.task.is_encoder_decoder)


@cache
def _cached_diagram(wiring: str, norm: str, depth: int, decoder: bool) -> Diagram | None:
    try:
        plain = build_block_diagram(wiring, decoder=decoder, depth=depth)
    except UserError:  # too deep to be built for a picture
        return None
    if norm != DEFAULT_NORM:
        named = norms.card(norms.resolve(norm).name).title
        graph = {
            key: replace(node, label=named) if node.label == "Norm" else node
            for key, node in plain.graph.items()
        }
        plain = replace(plain, graph=graph)
    return compute_layout(plain)


def sample_outputs(study: Study, styles: dict[str, ArmStyle]) -> list[Part]:
    """What the arms answer to the first records that all of them were asked."""
    try:
        questions = study.task.read_examples(study.folder)
    except (UserError, OSError):
        questions = []
    if not questions:
        return [Note("No sample outputs: this comparison has answered no records.")]
    chosen = {arm: _representative_cell(study, arm) for arm in study.spec.arms()}
    if not any(chosen.values()):
        return [Note("No sample outputs yet: no cell has come to its end.")]
    parts: list[Part] = []
    for number, (asked, wanted) in enumerate(questions):
        rows: list[tuple[Any, ...]] = [
            (styles[arm.name], *_sample_output(study, judged, number, wanted))
            for arm, judged in chosen.items()
        ]
        if wanted:
            rows = [(Markup("<b>wanted</b>"), Markup("<b>{}</b>").format(wanted), ""), *rows]
        head = ("arm", "answer", "right") if wanted else ("arm", "it goes on")
        parts.append(Table(asked, head, [row[: len(head)] for row in rows]))
    return [*parts, Note(_describe_cells(chosen))]


def _representative_cell(study: Study, arm: Arm) -> CellOutcome | None:
    """The cell that speaks for an arm: of its best setting at the greatest depth, the first seed
    that trained; where none has, the first that came to its end.
    """
    own = [each for each in study.cells if each.cell.arm == arm and each.end and each.end.samples]
    if not own:
        return None
    depth = max(each.cell.depth for each in own)
    own = [each for each in own if each.cell.depth == depth]
    line = next((a for a in study.summary if a.arm == arm and a.depth == depth), None)
    best = (line.best.warmup, line.best.lr) if line is not None and line.best else None
    at_best = [each for each in own if each.state == "trained" and each.cell.setting == best]
    return (at_best or own)[0]


def _sample_output(
    study: Study, outcome: CellOutcome | None, number: int, expected: str
) -> tuple[str, str]:
    """The answer, and a sign if it is the wanted one; labels come with their probability."""
    if outcome is None or outcome.end is None or number >= len(outcome.end.samples):
        return "—", ""
    text = outcome.end.samples[number]
    return text, CORRECT_MARK if study.task.is_correct(text, expected) else ""


def _describe_cells(outcomes: dict[Arm, CellOutcome | None]) -> str:
    told = []
    for arm, judged in outcomes.items():
        if judged is None:
            told.append(f"{arm.name}: no cell came to its end")
        else:
            told.append(f"{arm.name}: {judged.cell.name} ({judged.state})")
    return "Which cell answers: " + "; ".join(told) + "."


def _diagram_figure(diagram: Diagram) -> Figure:
    return Figure("", render_svg([diagram], theme="light"), render_svg([diagram], theme="dark"))
