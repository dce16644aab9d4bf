"""Streams: what stands between one join and the next, and which joins belong together."""

from dataclasses import dataclass, field
from typing import Literal

from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import ATTENTION, NONLINEAR
from addnorm.doctor.residual.mixtures import find_mixed_streams
from addnorm.doctor.residual.residual_adds import ResidualAdd, find_gated_stream, find_sliced_stream

MAX_STREAM_STEPS = 80
"""Steps on a stream from one join back to the one before."""
WRITE_OPS = frozenset({"where", "setitem", "scatter", "index_put", "index_copy", "masked_scatter"})
"""Operations that put something in the place of a part of a stream."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Something met on the stream between two joins."""

    kind: Literal["norm", "scale", "activation", "slice", "mixture"]
    node: int
    scale: Scale | None = None


@dataclass(slots=True)
class StreamLink:
    """How a fork hangs on the stream: the join before it, and what stands between."""

    previous: int = -1
    """The join, or -1 where the stream begins."""
    start: int = -1
    """The oldest node that was reached."""
    events: list[StreamEvent] = field(default_factory=list)

    def norms(self, *, include_before_mixture: bool = True) -> list[int]:
        """Norms between, the last one first; without those that stand before a mixture of several
        streams, if so wanted."""
        found: list[int] = []
        for met in self.events:
            if met.kind == "mixture" and not include_before_mixture:
                break
            if met.kind == "norm":
                found.append(met.node)
        return found

    @property
    def is_dense(self) -> bool:
        """Whether the stream is a mixture of several earlier ones."""
        return any(met.kind == "mixture" for met in self.events)


def find_stream_link(
    graph: Graph,
    adds: dict[int, ResidualAdd],
    *,
    norms: dict[int, Norm],
    add: ResidualAdd,
    start: int,
) -> StreamLink:
    """Walk back from a fork, or whatever the stream came by, to the join before it."""
    found = StreamLink()
    index = start
    for _ in range(MAX_STREAM_STEPS):
        found.start = index
        if index in adds and index != add.node:
            found.previous = index
            break
        step = _step_back(graph, norms, index=index, stream_link=found, width=add.width)
        if step is None:
            break
        index = step
    return found


def _step_back(
    graph: Graph, norms: dict[int, Norm], *, index: int, stream_link: StreamLink, width: int
) -> int | None:
    node = graph[index]
    if index in norms:
        stream_link.events.append(StreamEvent("norm", index))
        return norms[index].source
    back = graph.parent_through_scale(index)
    if back is not None:
        behind_norm = bool(stream_link.events) and stream_link.events[-1].kind == "norm"
        if back[1] is not None and not behind_norm:
            stream_link.events.append(StreamEvent("scale", index, back[1]))
        return back[0]
    part = find_sliced_stream(graph, index)
    if part is not None:
        stream_link.events.append(StreamEvent("slice", index))
        return part
    if node.op in WRITE_OPS and len(node.inputs) == 2:
        stream_link.events.append(StreamEvent("slice", index))
        return max(node.inputs)
    if len(node.inputs) == 1:
        if node.op in ("add", "sub", "rsub"):
            return node.inputs[0]
        if node.op in NONLINEAR and node.op not in ATTENTION:
            stream_link.events.append(StreamEvent("activation", index))
            return node.inputs[0]
    copy = find_own_copy(graph, index)
    if copy is not None:
        stream_link.events.append(StreamEvent("scale", index))
        return copy
    return _step_through_mixture(graph, index, stream_link=stream_link, width=width)


def find_own_copy(graph: Graph, index: int) -> int | None:
    """x in x - c * x, where the second may be detached or averaged."""
    node = graph[index]
    if node.op not in ("add", "sub", "rsub") or len(node.inputs) != 2:
        return None
    one, other = node.inputs
    if other in (i for i, _ in graph.trace_back(one)):
        return other
    if node.op == "sub" and one < other and graph.reaches(one, other):
        return one  # x - its moving average
    return one if one in (i for i, _ in graph.trace_back(other)) else None


def _step_through_mixture(
    graph: Graph, index: int, *, stream_link: StreamLink, width: int
) -> int | None:
    """A weighted sum of earlier streams: go on with the newest."""
    node = graph[index]
    streams = find_mixed_streams(graph, index, width=width)
    if streams is None and node.op in ("sum", "mean") and node.inputs:
        inner = graph[node.inputs[0]]
        if inner.op in ("stack", "cat") or (
            inner.op == "mul" and len(inner.shape) > len(node.shape)
        ):
            streams = inner.index
    if streams is None and node.op in ("stack", "cat") and len(node.inputs) > 1:
        streams = max(node.inputs)
    if streams is None and node.op in ("einsum", "matmul", "mul"):
        streams = next((i for i in node.inputs if graph[i].op in ("stack", "cat")), None)
        streams = find_gated_stream(graph, index) if streams is None else streams
    if streams is None and node.op == "mul" and len(node.inputs) == 2:
        large = max(node.inputs, key=lambda i: graph[i].size)
        streams = large if graph[large].size > min(graph[i].size for i in node.inputs) else None
    if streams is None and node.op == "linear" and len(node.inputs) == 1:
        streams = node.inputs[0] if graph[node.inputs[0]].op == "cat" else None  # U-shaped skips
    cut = bool(stream_link.events) and stream_link.events[-1].kind == "slice"
    whole = cut and node.op == "cat" and index in graph[stream_link.events[-1].node].inputs
    if streams is not None and not whole:  # a part of parts put side by side is one of them
        stream_link.events.append(StreamEvent("mixture", index))
    return streams


def number_streams(adds: list[ResidualAdd], links: dict[int, StreamLink]) -> dict[int, int]:
    """The number of its stream for every join, by following the links."""
    number: dict[int, int] = {}
    for join in adds:
        index = join.node
        before = join.parallel_to if join.parallel_to in number else links[index].previous
        number[index] = number[before] if before in number else len(set(number.values()))
    return number
