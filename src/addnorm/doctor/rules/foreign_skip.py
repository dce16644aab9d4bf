"""Rule `foreign_skip`: cross-attention that is added to the stream of its keys and values."""

from collections.abc import Iterator

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.contractions import is_activation_product, tensor_operands
from addnorm.doctor.graph.ops import ATTENTION
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("foreign_skip")
def foreign_skip(context: RuleContext) -> Iterator[Finding]:
    """Report attentions whose queries come from a stream that their sum does not continue.

    The skip carries the keys and values instead, so the stream of the queries ends in the
    attention: x = memory + f(x, memory) instead of x = x + f(x, memory).
    """
    sums = {block.add.node for block in context.blocks}
    wrong = [block for block in context.blocks if _loses_queries(context, block, sums)]
    if wrong:
        yield Finding(
            "foreign_skip", "error", context.module_path(wrong[0]),
            f"{len(wrong)} attentions are added to the stream of their keys and values, and the "
            "stream of their queries ends there; add the output to the stream that the queries "
            "come from",
            {"attentions": len(wrong), "blocks": len(context.blocks)},
        )  # fmt: skip


def _loses_queries(context: RuleContext, block: AddAnalysis, sums: set[int]) -> bool:
    """Return whether the queries come from another sum, which nothing else reads."""
    graph, path, fork = context.graph, block.add.path, block.add.fork
    for index in sorted(path - {fork}):
        node = graph[index]
        if node.op not in ATTENTION and not is_activation_product(graph, node):
            continue
        operands = [o.node for o in tensor_operands(node) if o.kind == "node"]
        if len(operands) < 2 or fork in graph.data_ancestors(operands[0]):
            return False
        if fork not in graph.data_ancestors(operands[1]):
            return False
        before = graph.data_ancestors(operands[0]) & sums
        last = max(before, default=None)
        if last is None or last in graph.data_ancestors(fork):
            return False
        return not any(
            last in (ancestors := graph.data_ancestors(other.add.fork))
            and block.add.node not in ancestors
            for other in context.blocks
            if other is not block and other.add.node > last
        )
    return False
