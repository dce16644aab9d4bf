"""Rule `skipped_sum`: a shortcut that starts before the attention instead of at its sum."""

from collections.abc import Iterator

from addnorm.doctor.analysis.branch_kinds import attention_steps
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("skipped_sum")
def skipped_sum(context: RuleContext) -> Iterator[Finding]:
    """Report x1 = x + attention(x), x2 = x + ffn(x1); the shortcut should start at x1.

    Silent if x1 reaches x2 without the feed-forward too, as in B2T.
    """
    adds = context.analysis.add_analyses
    found = [(a, b) for a in adds for b in adds if _skips_sum(context, a, b)]
    if found:
        first, second = found[0]
        yield Finding(
            "skipped_sum", "error", context.module_path(second),
            "the feed-forward is added to the input of the layer instead of the sum after the "
            "attention, so the stream loses that sum; start its shortcut at the sum",
            {"layers": len(found), "sum": context.graph[first.add.node].path},
        )  # fmt: skip


def _skips_sum(context: RuleContext, first: AddAnalysis, second: AddAnalysis) -> bool:
    """Return whether the sum of an attention is read by a feed-forward and by nothing else."""
    graph, inner, outer = context.graph, first.add, second.add
    if inner.node not in outer.path or inner.fork != outer.fork or inner.node == outer.node:
        return False
    attention = attention_steps(first.steps)
    if not attention or any(index > inner.node for index in attention_steps(second.steps)):
        return False
    if any(graph.reaches(index, outer.shortcut) for index in attention):
        return False  # the attention was added to the shortcut by another sum, as in ResiDual
    after = {index for index in outer.path if index > inner.node}
    shortcuts = (each.add for each in context.analysis.add_analyses if each.add.node in after)
    if any(graph.reaches(inner.node, add.shortcut) for add in shortcuts):
        return False  # the sum is added inside the branch
    matrices = [i for i in after if is_mixing(graph[i].op) and context.weight_names(i)]
    bypass = graph.forward_reach(inner.node) - graph.forward_reach(outer.node)
    return len(matrices) >= 2 and bypass - {outer.node} <= outer.path
