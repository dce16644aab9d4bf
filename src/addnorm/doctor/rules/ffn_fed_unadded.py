"""Rule `ffn_fed_unadded`: a sub-layer that reads a branch instead of the sum."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("ffn_fed_unadded")
def ffn_fed_unadded(context: RuleContext) -> Iterator[Finding]:
    """Report x1 = x + attention(x), x2 = x1 + ffn(attention(x)); the second should read x1."""
    by_node = {r.add.node: r for r in context.analysis.add_analyses}
    for block in context.blocks:
        before = block.add.parallel_to
        if block.fed_by is None or before is None or block.is_dual or block.skipped_adds:
            continue
        yield Finding(
            "ffn_fed_unadded", "error", context.module_path(block),
            "this branch reads the output of the previous branch without its skip connection; pass "
            "it the sum instead",
            {
                "reads": context.graph[block.fed_by].path,
                "sum": context.module_path(by_node[before]),
            },
        )  # fmt: skip
