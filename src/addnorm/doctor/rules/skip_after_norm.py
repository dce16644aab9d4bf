"""The skip carries the normalized input."""

from collections.abc import Iterator

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rules.base import RuleContext, rule


@rule("skip_after_norm")
def skip_after_norm(context: RuleContext) -> Iterator[Finding]:
    """x_next = N(x) + f(N(x)): Post-LN in disguise, the clean path of Pre-LN is lost."""
    classes = [context.wiring(r) for r in context.blocks]
    for reading in context.blocks:
        if reading.add.is_mixed or reading.add.is_gated or reading.add.difference_node >= 0:
            continue
        norms = reading.link.norms()
        severity: Severity
        if reading.is_false_pre_norm and context.norms[norms[0]].kind != "batch":
            hybrid = "pre_ln" not in classes and "none" in classes
            severity = "info" if hybrid else "error"
        elif _is_shortcut_normalized(context, reading):
            severity = "error"
        elif _is_first_without_norm(context, reading, classes=classes):
            severity = "info"  # or an embedding with a norm, and no other norm in the first block
        else:
            continue
        yield Finding(
            "skip_after_norm", severity, context.module_path(reading),
            "the skip carries the normalized input: x = N(x) + f(N(x)); keep the raw x for the "
            "skip and give N(x) to the branch only",
            {
                "skip": context.graph[reading.add.fork].path,
                "norm": context.graph[norms[0]].path if norms else None,
                "shortcut_variance": reading.add.stats.get("shortcut_variance"),
            },
        )  # fmt: skip


def _is_shortcut_normalized(context: RuleContext, reading: AddAnalysis) -> bool:
    """x_next = N(x) + f(x); a batch norm alone on a skip is a scale (RepVGG)."""
    join = reading.add
    if not join.has_normed_shortcut or join.parallel_to >= 0 or reading.is_dual:
        return False
    way = context.graph.nodes_between(join.fork, join.shortcut)
    return any(context.norms[i].kind != "batch" for i in way if i in context.norms)


def _is_first_without_norm(
    context: RuleContext, reading: AddAnalysis, *, classes: list[str]
) -> bool:
    """The first block of a Pre-LN stream that reads, and adds to, a normalized embedding."""
    if reading.link.previous >= 0 or not reading.link.norms() or context.wiring(reading) != "none":
        return False
    mine = [c for r, c in zip(context.blocks, classes, strict=True) if r.stream == reading.stream]
    return len(mine) > 2 and mine[1:].count("pre_ln") == len(mine) - 1
