"""Rule `skip_after_norm`: a skip connection that carries the normalized input."""

from collections.abc import Iterator

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rules.base import RuleContext, rule


@rule("skip_after_norm")
def skip_after_norm(context: RuleContext) -> Iterator[Finding]:
    """Report x_next = N(x) + f(N(x)).

    The block looks like Pre-LN, but each norm acts on the stream itself, as in Post-LN, and the
    identity path through the network is lost.
    """
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
            severity = "info"  # may be a norm of the embedding and a first block without a norm
        else:
            continue
        yield Finding(
            "skip_after_norm", severity, context.module_path(reading),
            "the skip connection carries the normalized input: x = N(x) + f(N(x)); add the branch "
            "to the raw x and pass N(x) to the branch only",
            {
                "skip": context.graph[reading.add.fork].path,
                "norm": context.graph[norms[0]].path if norms else None,
                "shortcut_variance": reading.add.stats.get("shortcut_variance"),
            },
        )  # fmt: skip


def _is_shortcut_normalized(context: RuleContext, reading: AddAnalysis) -> bool:
    """Whether x_next = N(x) + f(x); a batch norm on a skip is a scale (RepVGG) and is ignored."""
    join = reading.add
    if not join.has_normed_shortcut or join.parallel_to >= 0 or reading.is_dual:
        return False
    way = context.graph.nodes_between(join.fork, join.shortcut)
    return any(context.norms[i].kind != "batch" for i in way if i in context.norms)


def _is_first_without_norm(
    context: RuleContext, reading: AddAnalysis, *, classes: list[str]
) -> bool:
    """Whether the first block of a Pre-LN stream reads and adds to a normalized embedding."""
    if reading.link.previous >= 0 or not reading.link.norms() or context.wiring(reading) != "none":
        return False
    mine = [c for r, c in zip(context.blocks, classes, strict=True) if r.stream == reading.stream]
    return len(mine) > 2 and mine[1:].count("pre_ln") == len(mine) - 1
