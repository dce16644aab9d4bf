"""Streams: what lies between one residual add and the next, and which adds form one stream.

`find_stream_link` walks back from the fork of an add, along the stream, to the add before it. On
the way it notes every event: a norm, a scale, an activation, a slice, or a mixture of streams.

    model code                    nodes
    x = norm(x + attention(x))    5 add, 6 layer_norm(5)
    x = norm(x + mlp(x))          9 add with fork 6, 10 layer_norm(9)

    find_stream_link(..., add=9, start=6)
    StreamLink(previous=5, start=5, events=(StreamEvent("norm", 6),))

The add 9 thus follows the add 5, and a norm lies between them: Post-LN. Following the links from
add to add numbers the streams.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.graph.ops import ATTENTION, NONLINEAR
from addnorm.doctor.residual.mixtures import find_mixed_streams
from addnorm.doctor.residual.residual_adds import Adds, ResidualAdd
from addnorm.doctor.residual.shortcut_steps import find_gated_stream, find_sliced_stream

MAX_STREAM_STEPS = 80
"""Maximum number of steps from one residual add back to the one before."""
WRITE_OPS = frozenset({"where", "setitem", "scatter", "index_put", "index_copy", "masked_scatter"})
"""Operations that replace a part of a stream."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An operation on the stream between two residual adds."""

    kind: Literal["norm", "scale", "activation", "slice", "mixture"]
    node: int
    scale: Scale | None = None


@dataclass(frozen=True, slots=True)
class StreamLink:
    """Connection of a residual add to the one before it on the same stream."""

    start: int
    """Oldest node that the walk reached."""
    previous: int | None = None
    """The add before; None at the start of a stream."""
    events: tuple[StreamEvent, ...] = ()
    """Operations in between, the newest first."""

    def norms(self, *, include_before_mixture: bool = True) -> list[int]:
        """Return the norms between the adds, the newest first.

        Args:
            include_before_mixture: whether to include norms of single streams before they are
                mixed
        """
        norms: list[int] = []
        for event in self.events:
            if event.kind == "mixture" and not include_before_mixture:
                break
            if event.kind == "norm":
                norms.append(event.node)
        return norms

    @property
    def is_dense(self) -> bool:
        """Whether the stream is a mixture of several earlier ones."""
        return any(event.kind == "mixture" for event in self.events)


def find_stream_link(
    graph: Graph, adds: Adds, *, norms: Mapping[int, Norm], add: ResidualAdd, start: int
) -> StreamLink:
    """Walk back along the stream to the residual add before.

    Args:
        graph: recorded graph
        adds: all residual adds
        norms: all norms
        add: add whose link is searched
        start: node where the walk starts, usually the fork
    """
    events: list[StreamEvent] = []
    index = start
    for _ in range(MAX_STREAM_STEPS):
        start = index
        if index in adds and index != add.node:
            return StreamLink(start, index, tuple(events))
        last_event = events[-1] if events else None
        step = _step_back(graph, norms, index=index, last_event=last_event, width=add.width)
        if step is None:
            break
        index, event = step
        if event is not None:
            events.append(event)
    return StreamLink(start, None, tuple(events))


Step = tuple[int, StreamEvent | None]
"""Node before, and the event between, if it is worth noting."""


def _step_back(
    graph: Graph,
    norms: Mapping[int, Norm],
    *,
    index: int,
    last_event: StreamEvent | None,
    width: int,
) -> Step | None:
    node = graph[index]
    if index in norms:
        return norms[index].source, StreamEvent("norm", index)
    parent = graph.parent_through_scale(index)
    if parent is not None:
        # A scale before a norm has no effect on what follows the norm.
        is_before_norm = last_event is not None and last_event.kind == "norm"
        if parent[1] is None or is_before_norm:
            return parent[0], None
        return parent[0], StreamEvent("scale", index, parent[1])
    sliced = find_sliced_stream(graph, index)
    if sliced is not None:
        return sliced, StreamEvent("slice", index)
    if node.op in WRITE_OPS and len(node.inputs) == 2:
        return max(node.inputs), StreamEvent("slice", index)
    if len(node.inputs) == 1:
        if node.op in ("add", "sub", "rsub"):
            return node.inputs[0], None
        if node.op in NONLINEAR and node.op not in ATTENTION:
            return node.inputs[0], StreamEvent("activation", index)
    copy = find_own_copy(graph, index)
    if copy is not None:
        return copy, StreamEvent("scale", index)
    return _step_through_mixture(graph, index, last_event=last_event, width=width)


def find_own_copy(graph: Graph, index: int) -> int | None:
    """Return x in `x - c * x`, where the second term may be detached or a moving average."""
    node = graph[index]
    if node.op not in ("add", "sub", "rsub") or len(node.inputs) != 2:
        return None
    one, other = node.inputs
    if other in (i for i, _ in graph.trace_back(one)):
        return other
    if node.op == "sub" and one < other and graph.reaches(one, other):
        return one  # x - moving_average(x)
    return one if one in (i for i, _ in graph.trace_back(other)) else None


def _step_through_mixture(
    graph: Graph, index: int, *, last_event: StreamEvent | None, width: int
) -> Step | None:
    """Step back through a weighted sum of earlier streams, to the newest of them."""
    node = graph[index]
    streams = _newest_mixed_stream(graph, index, width=width)
    if streams is None:
        return None
    # Splitting a tensor and concatenating the parts again is not a mixture.
    is_own_part = (
        last_event is not None
        and last_event.kind == "slice"
        and node.op == "cat"
        and index in graph[last_event.node].inputs
    )
    return streams, None if is_own_part else StreamEvent("mixture", index)


def _newest_mixed_stream(graph: Graph, index: int, *, width: int) -> int | None:
    """Return the newest stream of a weighted sum, in any form; None if a node is not one."""
    node = graph[index]
    streams = find_mixed_streams(graph, index, width=width)
    if streams is None and node.op in ("sum", "mean") and node.inputs:
        summed = graph[node.inputs[0]]
        if summed.op in ("stack", "cat") or (
            summed.op == "mul" and len(summed.shape) > len(node.shape)
        ):
            streams = summed.index
    if streams is None and node.op in ("stack", "cat") and len(node.inputs) > 1:
        streams = max(node.inputs)
    if streams is None and node.op in ("einsum", "matmul", "mul"):
        streams = next((i for i in node.inputs if graph[i].op in ("stack", "cat")), None)
        streams = find_gated_stream(graph, index) if streams is None else streams
    if streams is None and node.op == "mul" and len(node.inputs) == 2:
        large = max(node.inputs, key=lambda i: graph[i].size)
        streams = large if graph[large].size > min(graph[i].size for i in node.inputs) else None
    if streams is None and node.op == "linear" and len(node.inputs) == 1:
        # A matrix after a concatenation: the long skips of a U-shaped network.
        streams = node.inputs[0] if graph[node.inputs[0]].op == "cat" else None
    return streams


def number_streams(adds: Iterable[ResidualAdd], links: Mapping[int, StreamLink]) -> dict[int, int]:
    """Return the number of the stream of each residual add, by its node.

    An add belongs to the stream of the add it is parallel to, else to that of the add before it,
    else it starts a new stream.
    """
    numbers: dict[int, int] = {}
    for add in adds:
        before = add.parallel_to if add.parallel_to in numbers else links[add.node].previous
        if before is not None and before in numbers:
            numbers[add.node] = numbers[before]
        else:
            numbers[add.node] = len(set(numbers.values()))
    return numbers
