"""Rule `partial_pre_norm`: a norm that only the queries of a self-attention read."""

from collections.abc import Iterator

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.analysis.weight_roles import find_weight_roles
from addnorm.doctor.graph.ops import PASS_THROUGH
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("partial_pre_norm")
def partial_pre_norm(context: RuleContext) -> Iterator[Finding]:
    """Report x + attention(N(x), x, x): keys and values read the stream without the norm.

    Keys and values of a cross-attention come from another stream, which has norms of its own.
    """
    found = [block for block in context.blocks if _normalizes_queries_only(context, block)]
    if found:
        yield Finding(
            "partial_pre_norm", "error", context.module_path(found[0]),
            "the norm before this self-attention is applied to the queries only, and keys and "
            "values read the stream itself; pass the normalized input as all three",
            {"blocks": len(found), "of": len(context.blocks)},
        )  # fmt: skip


def _normalizes_queries_only(context: RuleContext, block: AddAnalysis) -> bool:
    if block.kind != "self-attention":
        return False
    graph = context.graph
    sources: dict[str, int] = {}
    roles = find_weight_roles(context.analysis, block)
    for index in sorted(block.add.path):
        node = graph[index]
        if node.op == "multi_head_attention_forward":
            streams = [o.node for o in node.operands if o.kind == "node"][:3]
            sources |= dict(zip(("query", "key", "value"), streams, strict=False))
        elif len(node.inputs) == 1:
            names = {roles[name] for name in context.weight_names(index) if name in roles}
            sources |= {role: node.inputs[0] for role in names if role not in sources}
    if not all(role in sources for role in ("query", "key", "value")):
        return False
    query, key, value = (_skip_views(context, sources[r]) for r in ("query", "key", "value"))
    return (
        query in context.norms
        and key == value == block.add.fork
        and _skip_views(context, context.norms[query].source) == block.add.fork
    )


def _skip_views(context: RuleContext, index: int) -> int:
    """Return the node that an index shows in another shape or layout."""
    node = context.graph[index]
    while node.op in PASS_THROUGH and len(node.inputs) == 1 and node.index not in context.norms:
        node = context.graph[node.inputs[0]]
    return node.index
