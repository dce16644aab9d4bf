"""The block of a wiring: a real stack is built, run and recorded; equal layers are drawn once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.report.diagram.graph import Graph, GraphBuilder, Node
from addnorm.report.diagram.placeholders import build_sublayers
from addnorm.report.diagram.recorder import CLOSE, OPEN, Record, Value, record
from addnorm.report.diagram.simplify import prune_unused, remove_neutral, simplify
from addnorm.report.diagram.symbols import format_formula
from addnorm.stacks.stack import Stack
from addnorm.wirings.base import Wiring
from addnorm.wirings.base import registry as wirings

DIM, LENGTH, BATCH = 8, 3, 2
NUM_UNEQUAL_LAYERS, MAX_DRAWN_LAYERS, MAX_DEPTH = 3, 64, 512
"""Layers drawn where each is unlike the others, at most drawn, and at most built."""
ENCODER_KINDS, DECODER_KINDS = ("self", "ffn"), ("self", "cross", "ffn")


@dataclass(frozen=True)
class BlockDiagram:
    """What there is to draw of one wiring."""

    title: str
    call: str
    formula: str
    graph: Graph
    repeats: tuple[int, ...]
    """How many layers in a row each drawn layer stands for."""


def build_block_diagram(
    call: str | Call,
    *,
    decoder: bool = False,
    depth: int = 6,
    layers: int = 0,
    kinds: tuple[str, ...] = (),
) -> BlockDiagram:
    """The block of the wiring a call string names.

    kinds: the sub-layers of a layer, if not those of an encoder or decoder

    Equal layers of a stack of `depth` are drawn once. Where they cannot be, or if `layers` is
    given, every layer of a stack of that many is drawn.
    """
    if depth < 1 or layers < 0:
        raise UserError(f"layers are counted from 1, got depth={depth}, layers={layers}")
    if depth > MAX_DEPTH or layers > MAX_DRAWN_LAYERS:
        raise UserError(
            f"a picture has at most {MAX_DRAWN_LAYERS} layers, of a stack of at most {MAX_DEPTH}, got "
            f"layers={layers}, depth={depth}; choose fewer"
        )
    call = wirings.resolve(call)
    card = wirings.card(call.name)
    kinds = kinds or (DECODER_KINDS if decoder else ENCODER_KINDS)
    stack, seen = _record_placeholder_stack(str(call), kinds, layers or depth)
    runs = (
        [(layer, 1) for layer in range(layers)] if layers else _find_equal_runs(stack.wiring, seen)
    )
    if runs is None:
        stack, seen = _record_placeholder_stack(str(call), kinds, NUM_UNEQUAL_LAYERS)
        runs = [(layer, 1) for layer in range(NUM_UNEQUAL_LAYERS)]
    builder = _build_layers(stack.wiring, seen, [layer for layer, _ in runs])
    for place, (first, count) in enumerate(runs):
        if count > 1:
            _add_next_layer_outputs(
                builder, seen, first, place, _build_layer_graph(stack.wiring, seen, first + 1)
            )
    graph = simplify(builder.nodes)
    for place, (first, count) in enumerate(runs):
        ends = (
            _build_layer_graph(stack.wiring, seen, layer) for layer in (first, first + count - 1)
        )
        graph = _label_ranges(graph, place, *ends)
    graph = remove_neutral(graph)
    title = card.title + str(call).removeprefix(call.name)
    return BlockDiagram(
        title, str(call), format_formula(card.formula), graph, tuple(n for _, n in runs)
    )


def _record_placeholder_stack(
    call: str, kinds: tuple[str, ...], depth: int
) -> tuple[Stack, Record]:
    """A stack of stand-ins, and what it was seen doing."""
    decoder = "cross" in kinds
    role, other = ("decoder", depth) if decoder else ("encoder_only", None)
    parts = build_sublayers(kinds, depth, DIM)
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


def _find_equal_runs(wiring: Wiring, recording: Record) -> list[tuple[int, int]] | None:
    """First layer and length of each run of equal layers; None if a state grows or shrinks."""
    if len({len(state) for state in recording.states}) > 1:
        return None
    layers = range(wiring.plan.depth)
    runs = [
        list(run)
        for _, run in groupby(
            layers, key=lambda i: _signature(_build_layer_graph(wiring, recording, i))
        )
    ]
    return [(run[0], len(run)) for run in runs] if len(runs) <= 2 else None


def _build_layer_graph(wiring: Wiring, recording: Record, layer: int) -> Graph:
    """One layer alone, from state to state."""
    builder = _make_builder(wiring, recording)
    for position, value in enumerate(recording.states[layer]):
        builder.add_source(value, f"state {position}", slot=position)
    _add_layer_ops(builder, recording, layer, 0)
    for position, value in enumerate(recording.states[layer + 1]):
        if builder.find_node(value) is not None:
            builder.add_sink(value, f"state {position}", 0)
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


def _build_layers(wiring: Wiring, recording: Record, layers: Sequence[int]) -> GraphBuilder:
    """The picked layers between the embeddings and the head, each on top of the one before."""
    builder = _make_builder(wiring, recording)
    builder.add_source(recording.source, "x")
    _add_layer_ops(builder, recording, OPEN, -1)
    state = recording.states[0]
    for place, layer in enumerate(layers):
        _link_states(builder, recording.states[layer], state)
        _add_layer_ops(builder, recording, layer, place)
        state = recording.states[layer + 1]
    for mark in recording.verb_states:
        for position, value in enumerate(mark):
            builder.set_slot(value, position)
    _link_states(builder, recording.states[-1], state)
    _add_layer_ops(builder, recording, CLOSE, -2)
    builder.add_sink(recording.result, "y", -2)
    return builder


def _add_next_layer_outputs(
    builder: GraphBuilder, recording: Record, layer: int, index: int, following: Graph
) -> None:
    """What only the next layer of a run reads goes there, though it is not drawn."""
    reached = prune_unused(builder.nodes)
    read = {
        following[edge.source].slot
        for node in following.values()
        for edge in node.inputs
        if node.kind != "output" and following[edge.source].kind == "input"
    }
    for position, value in enumerate(recording.states[layer + 1]):
        made = builder.find_node(value)
        if position in read and made is not None and made not in reached:
            builder.add_sink(value, "next layer", index)


def _label_ranges(graph: Graph, index: int, first: Graph, last: Graph) -> Graph:
    """Numbers that change along a run of layers, from the first to the last of them."""
    drawn = [n for n in graph.values() if n.kind == "scale" and n.layer == index]
    pairs = list(zip(find_nodes(first, "scale"), find_nodes(last, "scale"), strict=True))
    if len(pairs) != len(drawn):
        return graph
    changed = {
        node.id: replace(node, label=f"{low.label} … {_last_word(high.label)}", neutral=False)
        for node, (low, high) in zip(drawn, pairs, strict=True)
        if low.label != high.label
    }
    return {id: changed.get(id, node) for id, node in graph.items()}


def _last_word(label: str) -> str:
    return label.split()[-1]


def _make_builder(wiring: Wiring, recording: Record) -> GraphBuilder:
    builder = GraphBuilder(_constants(wiring), len(recording.source.shape))
    builder.add_context(recording.context.values())
    return builder


def _link_states(
    builder: GraphBuilder, state: Sequence[Value], previous_state: Sequence[Value]
) -> None:
    """The state at the bottom of a layer is the state at the top of the one drawn below it."""
    for value, other in zip(state, previous_state, strict=True):
        if value is not other:
            builder.add_alias(value, other)


def _add_layer_ops(builder: GraphBuilder, recording: Record, layer: int, index: int) -> None:
    for op in recording.ops:
        if op.layer == layer:
            builder.add_op(op, index)


def _constants(wiring: Wiring) -> dict[float, str]:
    """Numbers to which the wiring has given one name of its own."""
    named: dict[float, list[str]] = {}
    for name, value in vars(wiring).items():
        if isinstance(value, float) and not name.startswith("_") and value not in (0.0, 1.0):
            named.setdefault(value, []).append(name)
    return {value: names[0] for value, names in named.items() if len(names) == 1}


def find_nodes(graph: Graph, kind: str) -> list[Node]:
    """Nodes of a kind, in the order in which they happened."""
    return [node for node in graph.values() if node.kind == kind]
