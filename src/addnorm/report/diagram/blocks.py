"""The block of a wiring: a real stack is built, run and recorded; equal layers are drawn once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.report.diagram.graph import Builder, Graph, Node
from addnorm.report.diagram.placeholders import sublayers
from addnorm.report.diagram.recorder import CLOSE, OPEN, Record, Value, record
from addnorm.report.diagram.simplify import alive, simplify, without_neutral
from addnorm.report.diagram.symbols import formula
from addnorm.stacks.stack import Stack
from addnorm.wirings.base import Wiring
from addnorm.wirings.base import registry as wirings

DIM, LENGTH, BATCH = 8, 3, 2
FEW, MOST, DEEPEST = 3, 64, 512
"""Layers drawn where each is unlike the others, at most drawn, and at most built."""
ENCODER, DECODER = ("self", "ffn"), ("self", "cross", "ffn")


@dataclass(frozen=True)
class Block:
    """What there is to draw of one wiring."""

    title: str
    call: str
    formula: str
    graph: Graph
    repeats: tuple[int, ...]
    """How many layers in a row each drawn layer stands for."""


def block(
    call: str | Call,
    *,
    decoder: bool = False,
    depth: int = 6,
    layers: int = 0,
    kinds: tuple[str, ...] = (),
) -> Block:
    """The block of the wiring a call string names.

    kinds: the sub-layers of a layer, if not those of an encoder or decoder

    Equal layers of a stack of `depth` are drawn once. Where they cannot be, or if `layers` is
    given, every layer of a stack of that many is drawn.
    """
    if depth < 1 or layers < 0:
        raise UserError(f"layers are counted from 1, got depth={depth}, layers={layers}")
    if depth > DEEPEST or layers > MOST:
        raise UserError(
            f"a picture has at most {MOST} layers, of a stack of at most {DEEPEST}, got "
            f"layers={layers}, depth={depth}; choose fewer"
        )
    call = wirings.resolve(call)
    card = wirings.card(call.name)
    kinds = kinds or (DECODER if decoder else ENCODER)
    stack, seen = _run(str(call), kinds, layers or depth)
    runs = [(layer, 1) for layer in range(layers)] if layers else _runs(stack.wiring, seen)
    if runs is None:
        stack, seen = _run(str(call), kinds, FEW)
        runs = [(layer, 1) for layer in range(FEW)]
    builder = _built(stack.wiring, seen, [layer for layer, _ in runs])
    for place, (first, count) in enumerate(runs):
        if count > 1:
            _hand_on(builder, seen, first, place, _layer(stack.wiring, seen, first + 1))
    graph = simplify(builder.nodes)
    for place, (first, count) in enumerate(runs):
        ends = (_layer(stack.wiring, seen, layer) for layer in (first, first + count - 1))
        graph = _spread(graph, place, *ends)
    graph = without_neutral(graph)
    title = card.title + str(call).removeprefix(call.name)
    return Block(title, str(call), formula(card.formula), graph, tuple(n for _, n in runs))


def _run(call: str, kinds: tuple[str, ...], depth: int) -> tuple[Stack, Record]:
    """A stack of stand-ins, and what it was seen doing."""
    decoder = "cross" in kinds
    role, other = ("decoder", depth) if decoder else ("encoder_only", None)
    parts = sublayers(kinds, depth, DIM)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        stack = Stack(parts, dim=DIM, wiring=call, kinds=kinds, role=role, other_depth=other).eval()
        x, another, memory = torch.randn(3, BATCH, LENGTH, DIM).unbind()
        context = {"memory": memory} if decoder else {}
        seen = record(stack, x, **context)
        if not torch.allclose(seen.replay(another), stack(another, **context), atol=1e-4):
            raise RuntimeError(
                f"the forward of {call} does something that its recorded operations do not; "
                "a drawing of them would be wrong"
            )
    return stack, seen


def _runs(wiring: Wiring, seen: Record) -> list[tuple[int, int]] | None:
    """First layer and length of each run of equal layers; None if a state grows or shrinks."""
    if len({len(state) for state in seen.states}) > 1:
        return None
    layers = range(wiring.plan.depth)
    runs = [
        list(run) for _, run in groupby(layers, key=lambda i: _signature(_layer(wiring, seen, i)))
    ]
    return [(run[0], len(run)) for run in runs] if len(runs) <= 2 else None


def _layer(wiring: Wiring, seen: Record, layer: int) -> Graph:
    """One layer alone, from state to state."""
    builder = _builder(wiring, seen)
    for position, value in enumerate(seen.states[layer]):
        builder.source(value, f"state {position}", slot=position)
    _add(builder, seen, layer, 0)
    for position, value in enumerate(seen.states[layer + 1]):
        if builder.holds(value) is not None:
            builder.sink(value, f"state {position}", 0)
    return simplify(builder.nodes)


def _signature(graph: Graph) -> tuple[object, ...]:
    """A layer without its numbers: equal for layers that one drawing can stand for."""
    order = {id: place for place, id in enumerate(graph)}
    return tuple(
        (
            node.kind,
            "" if node.kind == "scale" else node.label,
            node.note,
            node.learned,
            [(order[edge.source], edge.minus) for edge in node.inputs],
        )
        for node in graph.values()
    )


def _built(wiring: Wiring, seen: Record, layers: Sequence[int]) -> Builder:
    """The picked layers between the embeddings and the head, each on top of the one before."""
    builder = _builder(wiring, seen)
    builder.source(seen.source, "x")
    _add(builder, seen, OPEN, -1)
    state = seen.states[0]
    for place, layer in enumerate(layers):
        _enter(builder, seen.states[layer], state)
        _add(builder, seen, layer, place)
        state = seen.states[layer + 1]
    for mark in seen.marks:
        for position, value in enumerate(mark):
            builder.slot(value, position)
    _enter(builder, seen.states[-1], state)
    _add(builder, seen, CLOSE, -2)
    builder.sink(seen.result, "y", -2)
    return builder


def _hand_on(builder: Builder, seen: Record, layer: int, place: int, following: Graph) -> None:
    """What only the next layer of a run reads goes there, though it is not drawn."""
    reached = alive(builder.nodes)
    read = {
        following[edge.source].slot
        for node in following.values()
        for edge in node.inputs
        if node.kind != "output" and following[edge.source].kind == "input"
    }
    for position, value in enumerate(seen.states[layer + 1]):
        made = builder.holds(value)
        if position in read and made is not None and made not in reached:
            builder.sink(value, "next layer", place)


def _spread(graph: Graph, place: int, first: Graph, last: Graph) -> Graph:
    """Numbers that change along a run of layers, from the first to the last of them."""
    drawn = [n for n in graph.values() if n.kind == "scale" and n.layer == place]
    pairs = list(zip(nodes_of(first, "scale"), nodes_of(last, "scale"), strict=True))
    if len(pairs) != len(drawn):
        return graph
    changed = {
        node.id: replace(node, label=f"{low.label} … {_bare(high.label)}", neutral=False)
        for node, (low, high) in zip(drawn, pairs, strict=True)
        if low.label != high.label
    }
    return {id: changed.get(id, node) for id, node in graph.items()}


def _bare(label: str) -> str:
    return label.split()[-1]


def _builder(wiring: Wiring, seen: Record) -> Builder:
    builder = Builder(_constants(wiring), len(seen.source.shape))
    builder.context(seen.context.values())
    return builder


def _enter(builder: Builder, state: Sequence[Value], below: Sequence[Value]) -> None:
    """The state at the bottom of a layer is the state at the top of the one drawn below it."""
    for value, other in zip(state, below, strict=True):
        if value is not other:
            builder.join(value, other)


def _add(builder: Builder, seen: Record, layer: int, place: int) -> None:
    for op in seen.ops:
        if op.layer == layer:
            builder.add(op, place)


def _constants(wiring: Wiring) -> dict[float, str]:
    """Numbers to which the wiring has given one name of its own."""
    named: dict[float, list[str]] = {}
    for name, value in vars(wiring).items():
        if isinstance(value, float) and not name.startswith("_") and value not in (0.0, 1.0):
            named.setdefault(value, []).append(name)
    return {value: names[0] for value, names in named.items() if len(names) == 1}


def nodes_of(graph: Graph, kind: str) -> list[Node]:
    """Nodes of a kind, in the order in which they happened."""
    return [node for node in graph.values() if node.kind == kind]
