"""Rule `doubled_skip`: layers whose input is added once more, though they add it themselves.

y = layer(x)             x + f(x), with the skip connection of the layer
x = x + y                2 x + f(x): the stream doubles with each layer
"""

from collections.abc import Iterator

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

MIN_LAYERS = 2
"""Layers of a stream that must do so; a single long skip is a design."""


@rule("doubled_skip")
def doubled_skip(context: RuleContext) -> Iterator[Finding]:
    """Report skips around layers that already contain an unscaled path from input to output.

    Silent if a norm, a factor or a matrix lies on either path, or if the skip spans the whole
    stream.
    """
    nodes = {block.add.node: block for block in context.analysis.add_analyses}
    doubled = [block for block in nodes.values() if _is_doubled(context, block, nodes)]
    chained = [b for b in doubled if any(b.add.node == other.add.fork for other in doubled)]
    if len(doubled) < MIN_LAYERS or not chained:
        return
    yield Finding(
        "doubled_skip", "warning", context.module_path(doubled[0]),
        f"{len(doubled)} skip connections go around layers that have their own, so each layer "
        "returns 2 x + f(x) and the stream doubles with each of them; remove one of the two",
        {
            "layers": len(doubled),
            "stream_variance": context.add_stats(doubled[-1].add).get("stream_variance"),
        },
    )  # fmt: skip


def _is_doubled(context: RuleContext, block: AddAnalysis, nodes: dict[int, AddAnalysis]) -> bool:
    """Return whether the branch of an add is its fork plus other branches, nothing else."""
    add, graph = block.add, context.graph
    is_plain = add.op == "add" and not add.is_mixed and not add.is_gated and not add.has_projection
    if not is_plain or add.shortcut_scales or add.branch_scales or graph[add.shortcut].op == "cat":
        return False
    index = add.branch
    for _ in range(len(nodes)):
        index, scales = graph.trace_back(index)[-1]
        inner = nodes.get(index)
        if scales or inner is None or inner.add.is_mixed or inner.add.is_gated:
            return False
        if inner.add.shortcut_scales or inner.add.has_projection or inner.add.has_normed_shortcut:
            return False
        start = graph.trace_back(inner.add.shortcut)[-1][0]
        if inner.add.fork == add.fork or start == graph.trace_back(add.fork)[-1][0]:
            return True
        index = inner.add.shortcut
    return False
