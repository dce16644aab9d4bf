"""The last norm of a Pre-LN stream."""

from collections.abc import Iterator

from addnorm.doctor.analysis.branch_kinds import looking
from addnorm.doctor.analysis.results import Reading
from addnorm.doctor.graph.ops import mixes
from addnorm.doctor.report import Finding
from addnorm.doctor.residual.mixtures import mixture_of
from addnorm.doctor.rules.base import Case, rule

FEW = 2
TOLD = ("self-attention", "cross-attention", "feed-forward")


@rule("missing_final_norm")
def missing_final_norm(case: Case) -> Iterator[Finding]:
    """Pre-LN leaves its stream raw: something must normalize it before the head."""
    for last, rows in last_of_streams(case):
        normed = [r for r in rows if case.wiring(r) == "pre_ln"]
        if len(normed) < max(FEW, len(rows) / 2) or case.wiring(last) != "pre_ln":
            continue
        told = any(r.kind in TOLD for r in rows) and not last.join.gated
        if not told or last.post or last.after:
            continue
        raw = _raw_readers(case, last)
        if raw is None or (last.final_norms and not _remembered(case, last, readers=raw)):
            continue
        variance = last.join.signs.get("stream_variance")
        yield Finding(
            "missing_final_norm", "warning", case.home(last),
            "a Pre-LN stream ends without a norm: its size grows with depth and reaches what reads "
            "it as it is; put a norm behind the last block",
            {
                "blocks": len(rows),
                "stream_variance": variance,
                "read by": list(dict.fromkeys(case.graph[i].path for i in raw))[:4],
            },
        )  # fmt: skip


def last_of_streams(case: Case) -> list[tuple[Reading, list[Reading]]]:
    """The last block of every stream that does not go on as another one.

    A stream that others only look at, as a decoder does at its memory, ends there.
    """
    streams: dict[int, list[Reading]] = {}
    for reading in case.blocks:
        if not reading.dual:
            streams.setdefault(reading.stream, []).append(reading)
    found = []
    for rows in streams.values():
        last = rows[-1]
        begun = (other[0].link.start for other in streams.values() if other is not rows)
        if not any(case.graph.reaches(last.join.node, start) for start in begun):
            found.append((last, rows))
    return found


def _raw_readers(case: Case, last: Reading) -> list[int] | None:
    """What mixes the last sum, or returns it, before any norm; None if nothing does."""
    graph = case.graph
    outputs = set(case.visit.recorder.outputs)
    seen: set[int] = set()
    waiting, found = [last.join.node], []
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        if index in case.norms:
            continue
        if (
            index != last.join.node
            and mixes(graph[index].op)
            and not _light(case, last, index=index)
        ):
            found.append(index)
            continue
        if index in outputs and not graph[index].kids:
            found.append(index)
        waiting += graph[index].kids
    if not found and not seen & set(case.norms):
        return [last.join.node]  # nobody knows where it goes
    return sorted(found) or None


def _remembered(case: Case, last: Reading, *, readers: list[int]) -> bool:
    """Whether a block of another stream looks at the raw sum."""
    return any(
        case.graph.reaches(index, look)
        for reading in case.blocks
        if reading.stream != last.stream
        for look in looking(reading.steps)
        for index in readers
    )


def _light(case: Case, last: Reading, *, index: int) -> bool:
    """Whether a product is part of a norm, or reads parallel streams as one."""
    width = last.join.width
    if width and mixture_of(case.graph, index, width=width) is not None:
        return True
    return any(
        n.by_hand and n.source < index < n.node and index in case.graph.between(n.source, n.node)
        for n in case.norms.values()
    )
