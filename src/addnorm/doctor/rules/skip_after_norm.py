"""Rule `skip_after_norm`: a skip connection that carries the normalized input."""

from collections.abc import Iterator

from addnorm.doctor.analysis.post_norms import common_path
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("skip_after_norm")
def skip_after_norm(context: RuleContext) -> Iterator[Finding]:
    """Report skips that carry the normalized input: x_next = N(x) + f(N(x)).

    The block looks like Pre-LN, but each norm acts on the stream itself, as in Post-LN, and the
    identity path through the network is lost. It is a remark if all skips of the stream have a
    factor, a * N(x) + b * f(N(x)), and a norm follows the last sum: that is Post-LN with weights
    chosen for it, such as those of DeepNorm, and each norm written before the sub-layer (MiniMax).
    So is a cross-attention whose queries are the output of a module that ends with a norm (the
    grouping of GroupViT), and a residual block of a head behind the final norm, which another
    head reads too.
    """
    classes = [context.wiring(r) for r in context.blocks]
    for block in context.blocks:
        if block.add.is_mixed or block.add.is_gated or block.add.difference_node is not None:
            continue
        norms = block.link.norms()
        severity: Severity
        if block.is_false_pre_norm and context.norms[norms[0]].kind != "batch":
            hybrid = "pre_ln" not in classes and "none" in classes
            is_designed = (
                _is_weighted_post_norm(context, block)
                or _reads_closed_stream(context, block)
                or _is_head(context, block)
            )
            severity = "info" if hybrid or is_designed else "error"
        elif _is_shortcut_normalized(context, block):
            severity = "error"
        elif _is_first_without_norm(context, block, classes=classes):
            severity = "info"  # may be a norm of the embedding and a first block without a norm
        else:
            continue
        yield Finding(
            "skip_after_norm", severity, context.module_path(block),
            "the skip connection carries the normalized input: x = N(x) + f(N(x)); add the branch "
            "to the raw x and pass N(x) to the branch only",
            {
                "skip": context.graph[block.add.fork].path,
                "norm": context.graph[norms[0]].path if norms else None,
                "shortcut_variance": context.add_stats(block.add).get("shortcut_variance"),
            },
        )  # fmt: skip


def _is_weighted_post_norm(context: RuleContext, block: AddAnalysis) -> bool:
    """Return whether all skips of a block's stream are weighted, and a norm follows the last."""
    stream = [other for other in context.blocks if other.stream == block.stream]
    is_weighted = all(other.is_false_pre_norm and other.add.shortcut_scales for other in stream)
    return is_weighted and bool(stream[-1].final_norms)


def _is_head(context: RuleContext, block: AddAnalysis) -> bool:
    """Return whether an output reads the norm at which a block starts, but not the block."""
    graph, add = context.graph, block.add
    beside = set(graph[add.fork].users) - add.path - {add.node}
    reads = (graph.data_ancestors(output) for output in context.trace.recording.outputs)
    return any(add.node not in nodes and not beside.isdisjoint(nodes) for nodes in reads)


def _reads_closed_stream(context: RuleContext, block: AddAnalysis) -> bool:
    """Return whether the norm before a cross-attention ends the module of the block before.

    The first block of a stream has none before it, so the next one with a normalized skip decides.
    """
    same = [b for b in context.blocks if b.stream == block.stream and b.is_false_pre_norm]
    judged = next((b for b in same if b.link.previous is not None), None)
    judged = block if block.link.previous is not None else judged
    if judged is None or {block.kind, judged.kind} != {"cross-attention"}:
        return False
    before = next(b for b in context.blocks if b.add.node == judged.link.previous)
    norm = context.graph[judged.link.norms()[0]].path
    inside, own = (common_path([norm, b.add.module]) for b in (before, judged))
    return len(inside) > len(own)


def _is_shortcut_normalized(context: RuleContext, block: AddAnalysis) -> bool:
    """Return whether x_next = N(x) + f(x), unless N is a batch norm, which is a scale (RepVGG)."""
    add = block.add
    if not add.has_normed_shortcut or add.parallel_to is not None or block.is_dual:
        return False
    nodes = context.graph.nodes_between(add.fork, add.shortcut)
    return any(context.norms[i].kind != "batch" for i in nodes if i in context.norms)


def _is_first_without_norm(context: RuleContext, block: AddAnalysis, *, classes: list[str]) -> bool:
    """Return whether the first block of a Pre-LN stream starts from a normalized embedding."""
    if block.link.previous is not None or not block.link.norms() or context.wiring(block) != "none":
        return False
    same = [c for r, c in zip(context.blocks, classes, strict=True) if r.stream == block.stream]
    return len(same) > 2 and same[1:].count("pre_ln") == len(same) - 1
