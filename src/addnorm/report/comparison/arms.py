"""What the arms are, drawn and cited; and what each answers to the same inputs."""

from dataclasses import replace
from functools import cache
from typing import Any

from markupsafe import Markup

from addnorm.comparison.analysis.study import Judged, Study
from addnorm.comparison.grid import USUAL_NORM, Arm, has_norms
from addnorm.core.errors import UserError
from addnorm.norms.base import registry as norms
from addnorm.report.diagram.blocks import block
from addnorm.report.diagram.layout import Diagram, layout
from addnorm.report.diagram.svg import svg
from addnorm.report.diagram.symbols import formula
from addnorm.report.html.page import Column, Facts, Note, Part, Picture, Table
from addnorm.report.theme import Look
from addnorm.train.schedules.base import recommended
from addnorm.wirings.base import registry as wirings

RIGHT = "✓"


def cards(study: Study) -> list[Part]:
    """For each arm: its block, its formula, its paper."""
    made: list[Part] = []
    for arm in study.spec.arms():
        card = wirings.card(wirings.resolve(arm.wiring).name)
        facts = {"wiring": arm.wiring, "in a sentence": card.summary}
        facts |= {"formula": formula(card.formula), "paper": card.paper}
        if has_norms(arm.wiring):
            norm = norms.card(norms.resolve(arm.norm).name)
            facts |= {"norm N": f"{arm.norm}: {formula(norm.formula)}", "its paper": norm.paper}
        if arm.own:
            facts["schedule"] = recommended(arm.wiring)
        drawn = diagram(study, arm)
        pictures = [] if drawn is None else [_picture(drawn)]
        made.append(Column((*pictures, Facts(arm.name, facts))))
    return made


def diagram(study: Study, arm: Arm) -> Diagram | None:
    """The block of an arm at the greatest depth; None if it cannot be drawn."""
    depth = max(each.cell.depth for each in study.cells if each.cell.arm == arm)
    return _diagram(arm.wiring, arm.norm, depth, study.task.pair)


@cache
def _diagram(wiring: str, norm: str, depth: int, decoder: bool) -> Diagram | None:
    try:
        plain = block(wiring, decoder=decoder, depth=depth)
    except UserError:  # too deep to be built for a picture
        return None
    if norm != USUAL_NORM:
        named = norms.card(norms.resolve(norm).name).title
        graph = {
            key: replace(node, label=named) if node.label == "Norm" else node
            for key, node in plain.graph.items()
        }
        plain = replace(plain, graph=graph)
    return layout(plain)


def answers(study: Study, looks: dict[str, Look]) -> list[Part]:
    """What the arms answer to the first records that all of them were asked."""
    try:
        questions = study.task.questions(study.folder)
    except (UserError, OSError):
        questions = []
    if not questions:
        return [Note("No sample outputs: this comparison has answered no records.")]
    chosen = {arm: _speaker(study, arm) for arm in study.spec.arms()}
    if not any(chosen.values()):
        return [Note("No sample outputs yet: no cell has come to its end.")]
    parts: list[Part] = []
    for number, (asked, wanted) in enumerate(questions):
        rows: list[tuple[Any, ...]] = [
            (looks[arm.name], *_said(study, judged, number, wanted))
            for arm, judged in chosen.items()
        ]
        if wanted:
            rows = [(Markup("<b>wanted</b>"), Markup("<b>{}</b>").format(wanted), ""), *rows]
        head = ("arm", "answer", "right") if wanted else ("arm", "it goes on")
        parts.append(Table(asked, head, [row[: len(head)] for row in rows]))
    return [*parts, Note(_who(chosen))]


def _speaker(study: Study, arm: Arm) -> Judged | None:
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


def _said(study: Study, judged: Judged | None, number: int, wanted: str) -> tuple[str, str]:
    """The answer, and a sign if it is the wanted one; labels come with their probability."""
    if judged is None or judged.end is None or number >= len(judged.end.samples):
        return "—", ""
    text = judged.end.samples[number]
    return text, RIGHT if study.task.right(text, wanted) else ""


def _who(chosen: dict[Arm, Judged | None]) -> str:
    told = []
    for arm, judged in chosen.items():
        if judged is None:
            told.append(f"{arm.name}: no cell came to its end")
        else:
            told.append(f"{arm.name}: {judged.cell.name} ({judged.state})")
    return "Which cell answers: " + "; ".join(told) + "."


def _picture(drawn: Diagram) -> Picture:
    return Picture("", svg([drawn], theme="light"), svg([drawn], theme="dark"))
