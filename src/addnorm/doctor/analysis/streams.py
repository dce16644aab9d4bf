"""Streams: what stands between one join and the next, and which joins belong together."""

from dataclasses import dataclass, field
from typing import Literal

from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import ATTENTION, NONLINEAR
from addnorm.doctor.residual.mixtures import mixture_of
from addnorm.doctor.residual.residual_adds import Join, gate_of, part_of

STREAM_STEPS = 80
"""Steps on a stream from one join back to the one before."""
WRITES = frozenset({"where", "setitem", "scatter", "index_put", "index_copy", "masked_scatter"})
"""Operations that put something in the place of a part of a stream."""


@dataclass(frozen=True, slots=True)
class Met:
    """Something met on the stream between two joins."""

    what: Literal["norm", "scale", "activation", "slice", "mixture"]
    node: int
    scale: Scale | None = None


@dataclass(slots=True)
class Link:
    """How a fork hangs on the stream: the join before it, and what stands between."""

    before: int = -1
    """The join, or -1 where the stream begins."""
    start: int = -1
    """The oldest node that was reached."""
    met: list[Met] = field(default_factory=list)

    def norms(self, *, behind_mixture: bool = True) -> list[int]:
        """Norms between, the last one first; without those that stand before a mixture of several
        streams, if so wanted."""
        found: list[int] = []
        for met in self.met:
            if met.what == "mixture" and not behind_mixture:
                break
            if met.what == "norm":
                found.append(met.node)
        return found

    @property
    def dense(self) -> bool:
        """Whether the stream is a mixture of several earlier ones."""
        return any(met.what == "mixture" for met in self.met)


def link(
    graph: Graph, joins: dict[int, Join], *, norms: dict[int, Norm], join: Join, start: int
) -> Link:
    """Walk back from a fork, or whatever the stream came by, to the join before it."""
    found = Link()
    index = start
    for _ in range(STREAM_STEPS):
        found.start = index
        if index in joins and index != join.node:
            found.before = index
            break
        step = _step(graph, norms, index=index, found=found, width=join.width)
        if step is None:
            break
        index = step
    return found


def _step(
    graph: Graph, norms: dict[int, Norm], *, index: int, found: Link, width: int
) -> int | None:
    node = graph[index]
    if index in norms:
        found.met.append(Met("norm", index))
        return norms[index].source
    back = graph.back(index)
    if back is not None:
        behind_norm = bool(found.met) and found.met[-1].what == "norm"
        if back[1] is not None and not behind_norm:
            found.met.append(Met("scale", index, back[1]))
        return back[0]
    part = part_of(graph, index)
    if part is not None:
        found.met.append(Met("slice", index))
        return part
    if node.op in WRITES and len(node.ins) == 2:
        found.met.append(Met("slice", index))
        return max(node.ins)
    if len(node.ins) == 1:
        if node.op in ("add", "sub", "rsub"):
            return node.ins[0]
        if node.op in NONLINEAR and node.op not in ATTENTION:
            found.met.append(Met("activation", index))
            return node.ins[0]
    copy = own_copy(graph, index)
    if copy is not None:
        found.met.append(Met("scale", index))
        return copy
    return _through_mixture(graph, index, found=found, width=width)


def own_copy(graph: Graph, index: int) -> int | None:
    """x in x - c * x, where the second may be detached or averaged."""
    node = graph[index]
    if node.op not in ("add", "sub", "rsub") or len(node.ins) != 2:
        return None
    one, other = node.ins
    if other in (i for i, _ in graph.chain(one)):
        return other
    if node.op == "sub" and one < other and graph.reaches(one, other):
        return one  # x - its moving average
    return one if one in (i for i, _ in graph.chain(other)) else None


def _through_mixture(graph: Graph, index: int, *, found: Link, width: int) -> int | None:
    """A weighted sum of earlier streams: go on with the newest."""
    node = graph[index]
    streams = mixture_of(graph, index, width=width)
    if streams is None and node.op in ("sum", "mean") and node.ins:
        inner = graph[node.ins[0]]
        if inner.op in ("stack", "cat") or (
            inner.op == "mul" and len(inner.shape) > len(node.shape)
        ):
            streams = inner.index
    if streams is None and node.op in ("stack", "cat") and len(node.ins) > 1:
        streams = max(node.ins)
    if streams is None and node.op in ("einsum", "matmul", "mul"):
        streams = next((i for i in node.ins if graph[i].op in ("stack", "cat")), None)
        streams = gate_of(graph, index) if streams is None else streams
    if streams is None and node.op == "mul" and len(node.ins) == 2:
        large = max(node.ins, key=lambda i: graph[i].size)
        streams = large if graph[large].size > min(graph[i].size for i in node.ins) else None
    if streams is None and node.op == "linear" and len(node.ins) == 1:
        streams = node.ins[0] if graph[node.ins[0]].op == "cat" else None  # U-shaped skips
    cut = bool(found.met) and found.met[-1].what == "slice"
    whole = cut and node.op == "cat" and index in graph[found.met[-1].node].ins
    if streams is not None and not whole:  # a part of parts put side by side is one of them
        found.met.append(Met("mixture", index))
    return streams


def grouped(joins: list[Join], links: dict[int, Link]) -> dict[int, int]:
    """The number of its stream for every join, by following the links."""
    number: dict[int, int] = {}
    for join in joins:
        index = join.node
        before = join.via if join.via in number else links[index].before
        number[index] = number[before] if before in number else len(set(number.values()))
    return number
