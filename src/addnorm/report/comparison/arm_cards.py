"""The card of each arm: block diagram, formula and paper."""

from functools import cache

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.grid import DEFAULT_NORM, UNSPECIFIED, Arm, format_value, has_norms
from addnorm.core.errors import UserError
from addnorm.norms.base import registry as norms
from addnorm.report.diagram.blocks import build_block_diagram, name_norms
from addnorm.report.diagram.html_figure import diagram_figure
from addnorm.report.diagram.label_text import format_formula
from addnorm.report.diagram.layout import Diagram, compute_layout
from addnorm.report.html.page import Column, Facts, Part
from addnorm.train.schedules.base import recommended_schedule
from addnorm.wirings.base import registry as wirings

UNREGISTERED = (
    "not drawn: the wiring is not registered in this process. Import the module that registers it."
)

OWN_MODEL = "not drawn: the task builds its own model; `addnorm doctor` shows how it is wired."


def build_arm_cards(study: Study) -> list[Part]:
    """Return a column with diagram and facts for each arm."""
    columns: list[Part] = []
    for arm in study.spec.arms():
        if not study.task.is_drawn:
            values = {"wiring": arm.wiring, "norm": arm.norm} | dict(arm.extras)
            named = {
                name: format_value(each) for name, each in values.items() if each != UNSPECIFIED
            }
            columns.append(Column((Facts(arm.name, named | {"diagram": OWN_MODEL}),)))
            continue
        extras = {name: format_value(value) for name, value in arm.extras}
        if not wirings.can_resolve(arm.wiring):
            facts = {"wiring": arm.wiring, **extras, "diagram": UNREGISTERED}
            columns.append(Column((Facts(arm.name, facts),)))
            continue
        card = wirings.card(wirings.resolve(arm.wiring).name)
        facts = {
            "wiring": arm.wiring,
            "summary": card.summary,
            "formula": format_formula(card.formula),
            "paper": card.paper,
            **extras,
        }
        if has_norms(arm.wiring) and norms.can_resolve(arm.norm):
            norm = norms.card(norms.resolve(arm.norm).name)
            facts |= {
                "norm N": f"{arm.norm}: {format_formula(norm.formula)}",
                "norm paper": norm.paper,
            }
        if arm.own:
            facts["schedule"] = recommended_schedule(arm.wiring)
        diagram = build_arm_diagram(study, arm)
        figures = [] if diagram is None else [diagram_figure("", [diagram])]
        columns.append(Column((*figures, Facts(arm.name, facts))))
    return columns


def build_arm_diagram(study: Study, arm: Arm) -> Diagram | None:
    """Return the diagram of an arm at its greatest depth; None if it cannot be drawn."""
    if not study.task.is_drawn or not wirings.can_resolve(arm.wiring):
        return None
    depth = max(each.cell.depth for each in study.cells if each.cell.arm == arm)
    return _cached_diagram(arm.wiring, arm.norm, depth, study.task.is_encoder_decoder)


@cache
def _cached_diagram(wiring: str, norm: str, depth: int, decoder: bool) -> Diagram | None:
    try:
        block = build_block_diagram(wiring, decoder=decoder, depth=depth)
    except UserError:  # deeper than a diagram can be
        return None
    return compute_layout(block if norm == DEFAULT_NORM else name_norms(block, norm))
