"""Rule `discarded_sum`: a sum of the stream that is computed and not used."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("discarded_sum")
def discarded_sum(context: RuleContext) -> Iterator[Finding]:
    """Report `x + positions` without an assignment: the stream goes on without the positions.

    Only if the other summand has weights that no output depends on.
    """
    if not context.blocks or not context.trace.recording.outputs:
        return
    graph, gradients = context.graph, context.trace.gradients.weights
    for node in graph:
        if node.op != "add" or node.users or context.is_used(node.index) or len(node.operands) != 2:
            continue
        streams = [o.node for o in node.operands if o.kind == "node"]
        names = [*context.weight_names(node.index), *(
            name for index in streams if not context.is_used(index)
            for each in (index, *graph.data_ancestors(index)) for name in context.weight_names(each)
        )]  # fmt: skip
        unused = [name for name in dict.fromkeys(names) if not gradients.get(name)]
        if unused and any(context.is_used(index) for index in streams):
            yield Finding(
                "discarded_sum", "error", node.path or "the model itself",
                f"this sum is not used, so {unused[0]} has no effect; assign it, as x = x + ...",
                {"weights": unused[:4], "shape": node.shape},
            )  # fmt: skip
            return
