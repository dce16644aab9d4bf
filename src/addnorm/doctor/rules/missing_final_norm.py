"""Rule `missing_final_norm`: a Pre-LN stream that ends without a norm."""

from collections.abc import Iterator

from addnorm.doctor.analysis.branch_kinds import attention_steps
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import POOLING, is_mixing
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.residual.mixtures import find_mixed_streams
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

MIN_PRE_NORM_BLOCKS = 2
TRANSFORMER_KINDS = ("self-attention", "cross-attention", "feed-forward")


@rule("missing_final_norm")
def missing_final_norm(context: RuleContext) -> Iterator[Finding]:
    """Report a Pre-LN stream that the head, or another stream, reads without a norm.

    Pre-LN never normalizes the stream itself, so a norm must follow the last block. It is a remark
    if the stream hardly grows, because learned scales keep the branches small. If the model returns
    the stream as it is, its reader may have a norm of its own, as behind backbones; a forgotten
    norm is more frequent, and the message says so.
    """
    for last, rows in find_last_blocks(context):
        normed = [r for r in rows if context.wiring(r) == "pre_ln"]
        if (
            len(normed) < max(MIN_PRE_NORM_BLOCKS, len(rows) / 2)
            or context.wiring(last) != "pre_ln"
        ):
            continue
        applies = any(r.kind in TRANSFORMER_KINDS for r in rows) and not last.add.is_gated
        applies &= context.is_used(last.add.node)  # global tokens may end with the last layer
        if not applies or last.has_post_norm or last.activation_after:
            continue
        raw = _find_raw_readers(context, last)
        if raw is None or (
            last.final_norms and not _is_read_by_other_stream(context, last, readers=raw)
        ):
            continue
        variance = context.add_stats(last.add).get("stream_variance")
        ops = {context.graph[i].op for i in raw if i != last.add.node} - POOLING
        is_read = any(map(is_mixing, ops))
        severity: Severity = "info" if _are_branches_small(normed) else "warning"
        message = (
            "a Pre-LN stream ends without a norm, so its readers see a variance that grows with "
            "depth; add a norm after the last block"
            if is_read
            else "the model returns a Pre-LN stream without a final norm, so its variance grows "
            "with depth; add a norm after the last block, unless the reader normalizes it"
        )
        yield Finding(
            "missing_final_norm", severity, context.module_path(last), message,
            {
                "blocks": len(rows),
                "stream_variance": variance,
                "read by": list(dict.fromkeys(context.graph[i].path for i in raw))[:4],
            },
        )  # fmt: skip


def find_last_blocks(context: RuleContext) -> list[tuple[AddAnalysis, list[AddAnalysis]]]:
    """Return the last block of every stream with all blocks of that stream.

    Streams that continue as another one are left out. A stream that is only attended to, such as
    the memory of a decoder, counts as ending.
    """
    streams: dict[int, list[AddAnalysis]] = {}
    for block in context.blocks:
        if not block.is_dual:
            streams.setdefault(block.stream, []).append(block)
    last_blocks = []
    for rows in streams.values():
        last = rows[-1]
        starts = (other[0].link.start for other in streams.values() if other is not rows)
        if not any(context.graph.reaches(last.add.node, start) for start in starts):
            last_blocks.append((last, rows))
    return last_blocks


def _are_branches_small(blocks: list[AddAnalysis]) -> bool:
    """Return whether learned scales below 1, as of LayerScale, multiply all branches."""
    return all(
        any(s.kind == "weight" and s.value is not None and abs(s.value) < 1 for s in block.scales)
        for block in blocks
    )


def _find_raw_readers(context: RuleContext, last: AddAnalysis) -> list[int] | None:
    """Return the readers of the last sum, outputs included, before any norm; None if none."""
    graph = context.graph
    outputs = set(context.trace.recording.outputs)
    visited: set[int] = set()
    pending, readers = [last.add.node], []
    while pending:
        index = pending.pop()
        if index in visited:
            continue
        visited.add(index)
        if index in context.norms:
            continue
        if (
            index != last.add.node
            and is_mixing(graph[index].op)
            and graph[index].op not in POOLING  # pooled tokens are still the stream
            and not _is_norm_or_mixture(context, last, index=index)
        ):
            readers.append(index)
            continue
        if index in outputs and not graph[index].users:
            readers.append(index)
        pending += graph[index].users
    if not readers and not visited & set(context.norms):
        return [last.add.node]  # the readers are outside the recorded graph
    return sorted(readers) or None


def _is_read_by_other_stream(
    context: RuleContext, last: AddAnalysis, *, readers: list[int]
) -> bool:
    """Return whether an attention of another stream reads the sum without a norm."""
    return any(
        context.graph.reaches(index, attention)
        for block in context.blocks
        if block.stream != last.stream
        for attention in attention_steps(block.steps)
        for index in readers
    )


def _is_norm_or_mixture(context: RuleContext, last: AddAnalysis, *, index: int) -> bool:
    """Return whether a product is part of a norm, or combines parallel residual streams."""
    width = last.add.width
    if width and find_mixed_streams(context.graph, index, width=width) is not None:
        return True
    return any(
        n.by_hand
        and n.source < index < n.node
        and index in context.graph.nodes_between(n.source, n.node)
        for n in context.norms.values()
    )
