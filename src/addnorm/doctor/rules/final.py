"""The last norm of a Pre-LN stream."""

from collections.abc import Iterator

from addnorm.doctor.mixtures import mixture_of
from addnorm.doctor.ops import mixes
from addnorm.doctor.readings import Reading
from addnorm.doctor.report import Finding
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
        if not told or last.final_norms or last.post or last.after or _normed_later(case, last):
            continue
        variance = last.join.signs.get("stream_variance")
        yield Finding(
            "missing_final_norm", "warning", case.home(last),
            "a Pre-LN stream ends without a norm: its size grows with depth and reaches the head "
            "as it is; put a norm behind the last block",
            {"blocks": len(rows), "stream_variance": variance},
        )  # fmt: skip


def last_of_streams(case: Case) -> list[tuple[Reading, list[Reading]]]:
    """The last block of every stream that no other stream's block is made of on a main path."""
    streams: dict[int, list[Reading]] = {}
    for reading in case.blocks:
        if not reading.dual:
            streams.setdefault(reading.stream, []).append(reading)
    found = []
    for rows in streams.values():
        last = rows[-1]
        later = [r for r in case.blocks if r.stream != last.stream and r.join.node > last.join.node]
        if not any(case.graph.reaches(last.join.node, r.join.fork) for r in later):
            found.append((last, rows))
    return found


def _normed_later(case: Case, last: Reading) -> bool:
    """Whether every way from the last sum meets a norm before something mixes or the end."""
    graph = case.graph
    outputs = set(case.visit.recorder.outputs)
    seen: set[int] = set()
    waiting = [last.join.node]
    met = False
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        if index in case.norms:
            met = True
            continue
        if index != last.join.node and mixes(graph[index].op) and not _light(case, last, index):
            return False
        if index in outputs and not graph[index].kids:
            return False
        waiting += graph[index].kids
    return met


def _light(case: Case, last: Reading, index: int) -> bool:
    """Whether a product is part of a norm, or reads parallel streams as one."""
    width = last.join.width
    if width and mixture_of(case.graph, index, width) is not None:
        return True
    return any(
        n.by_hand and n.source < index < n.node and index in case.graph.between(n.source, n.node)
        for n in case.norms.values()
    )
