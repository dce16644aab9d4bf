"""Rule `unregistered_weights`: weights that the model uses and does not own."""

from collections.abc import Iterator

from addnorm.doctor.graph.nodes import Operand
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("unregistered_weights")
def unregistered_weights(context: RuleContext) -> Iterator[Finding]:
    """Report parameters that take part in training and are not among `model.parameters()`.

    Modules in a Python list or dict are not registered: an optimizer does not train them, and a
    checkpoint does not store them. Frozen networks that are hidden this way on purpose are silent,
    and so is the initialization of modules that a forward pass builds, as in BigBird.
    """
    nodes = [
        node
        for node in context.graph
        if node.grad
        and context.is_used(node.index)
        and any(_is_unregistered(o) for o in node.operands)
    ]
    if not nodes:
        return
    yield Finding(
        "unregistered_weights", "error", nodes[0].path or "the model itself",
        f"{len(nodes)} operations read weights that are not parameters of the model, so optimizers "
        "and checkpoints ignore them; keep modules in nn.ModuleList or nn.ModuleDict",
        {"operations": [node.op for node in nodes[:4]], "shapes": [
            o.shape for node in nodes[:4] for o in node.operands if _is_unregistered(o)
        ]},
    )  # fmt: skip


def _is_unregistered(operand: Operand) -> bool:
    return operand.kind == "weight" and not operand.name and not operand.frozen
