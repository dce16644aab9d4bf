"""The last norm of a Pre-LN stream."""

from collections.abc import Iterator

from addnorm.doctor.analysis.branch_kinds import attention_steps
from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.graph.ops import is_mixing
from addnorm.doctor.report import Finding
from addnorm.doctor.residual.mixtures import find_mixed_streams
from addnorm.doctor.rules.base import RuleContext, rule

MIN_PRE_NORM_BLOCKS = 2
TRANSFORMER_KINDS = ("self-attention", "cross-attention", "feed-forward")


@rule("missing_final_norm")
def missing_final_norm(context: RuleContext) -> Iterator[Finding]:
    """Pre-LN leaves its stream raw: something must normalize it before the head."""
    for last, rows in find_last_blocks(context):
        normed = [r for r in rows if context.wiring(r) == "pre_ln"]
        if (
            len(normed) < max(MIN_PRE_NORM_BLOCKS, len(rows) / 2)
            or context.wiring(last) != "pre_ln"
        ):
            continue
        told = any(r.kind in TRANSFORMER_KINDS for r in rows) and not last.add.is_gated
        if not told or last.has_post_norm or last.activation_after:
            continue
        raw = _find_raw_readers(context, last)
        if raw is None or (
            last.final_norms and not _is_read_by_other_stream(context, last, readers=raw)
        ):
            continue
        variance = last.add.stats.get("stream_variance")
        yield Finding(
            "missing_final_norm", "warning", context.module_path(last),
            "a Pre-LN stream ends without a norm: its size grows with depth and reaches what reads "
            "it as it is; put a norm behind the last block",
            {
                "blocks": len(rows),
                "stream_variance": variance,
                "read by": list(dict.fromkeys(context.graph[i].path for i in raw))[:4],
            },
        )  # fmt: skip


def find_last_blocks(context: RuleContext) -> list[tuple[AddAnalysis, list[AddAnalysis]]]:
    """The last block of every stream that does not go on as another one.

    A stream that others only look at, as a decoder does at its memory, ends there.
    """
    streams: dict[int, list[AddAnalysis]] = {}
    for reading in context.blocks:
        if not reading.is_dual:
            streams.setdefault(reading.stream, []).append(reading)
    found = []
    for rows in streams.values():
        last = rows[-1]
        begun = (other[0].link.start for other in streams.values() if other is not rows)
        if not any(context.graph.reaches(last.add.node, start) for start in begun):
            found.append((last, rows))
    return found


def _find_raw_readers(context: RuleContext, last: AddAnalysis) -> list[int] | None:
    """What mixes the last sum, or returns it, before any norm; None if nothing does."""
    graph = context.graph
    outputs = set(context.trace.recorder.outputs)
    seen: set[int] = set()
    waiting, found = [last.add.node], []
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        if index in context.norms:
            continue
        if (
            index != last.add.node
            and is_mixing(graph[index].op)
            and not _is_norm_or_mixture(context, last, index=index)
        ):
            found.append(index)
            continue
        if index in outputs and not graph[index].users:
            found.append(index)
        waiting += graph[index].users
    if not found and not seen & set(context.norms):
        return [last.add.node]  # nobody knows where it goes
    return sorted(found) or None


def _is_read_by_other_stream(
    context: RuleContext, last: AddAnalysis, *, readers: list[int]
) -> bool:
    """Whether a block of another stream looks at the raw sum."""
    return any(
        context.graph.reaches(index, look)
        for reading in context.blocks
        if reading.stream != last.stream
        for look in attention_steps(reading.steps)
        for index in readers
    )


def _is_norm_or_mixture(context: RuleContext, last: AddAnalysis, *, index: int) -> bool:
    """Whether a product is part of a norm, or reads parallel streams as one."""
    width = last.add.width
    if width and find_mixed_streams(context.graph, index, width=width) is not None:
        return True
    return any(
        n.by_hand
        and n.source < index < n.node
        and index in context.graph.nodes_between(n.source, n.node)
        for n in context.norms.values()
    )
