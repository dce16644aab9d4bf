"""Step 4: the graph of one wiring, with equal layers drawn once.

`build_block_diagram` builds a stack of placeholders, records it, and compares its layers by a
signature of their simplified graphs. A run of equal layers is drawn once, with its length:

    post_ln, depth 6             layers 0 1 2 3 4 5 equal           repeats (6,)
    mix_ln(post=0.5), depth 4    layers 0 1 equal, 2 3 equal        repeats (2, 2)
    a state that grows           each layer reads more than before  repeats (1, 1, 1), depth 3

The drawn layers are then linked into one graph: the state at the end of a drawn layer is the state
at the start of the next drawn one. Factors that change along a run get a range as label, such as
"1 … 0.5".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.norms.base import registry as norms
from addnorm.report.diagram.graph import Graph, GraphBuilder, Node
from addnorm.report.diagram.label_text import format_formula
from addnorm.report.diagram.placeholders import (
    Notes,
    build_sublayers,
    describe_options,
    describe_random_depth,
)
from addnorm.report.diagram.recorder import CLOSE, OPEN, Record, Value, record
from addnorm.report.diagram.simplify import prune_unused, remove_neutral, simplify
from addnorm.stacks.stack import Stack
from addnorm.wirings.base import Wiring
from addnorm.wirings.base import registry as wirings

DIM, LENGTH, BATCH = 8, 3, 2
"""Sizes of the recorded tensors."""
NUM_UNEQUAL_LAYERS = 3
"""Number of layers that are drawn if the layers of a stack cannot be grouped."""
MAX_RUNS = 2
"""Maximum number of runs of equal layers; with more, the layers count as unequal."""
MAX_DRAWN_LAYERS, MAX_DEPTH = 64, 512
ENCODER_KINDS, DECODER_KINDS = ("self", "ffn"), ("self", "cross", "ffn")


@dataclass(frozen=True)
class BlockDiagram:
    """The graph of one wiring with its texts."""

    title: str
    call: str
    """Call string of the wiring."""
    formula: str
    graph: Graph
    repeats: tuple[int, ...]
    """Number of equal layers that each drawn layer stands for."""


def build_block_diagram(
    call: str | Call,
    *,
    decoder: bool = False,
    depth: int = 6,
    unroll: int = 0,
    kinds: tuple[str, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> BlockDiagram:
    """Return the block diagram of a wiring.

    Args:
        call: call string of the wiring
        decoder: whether layers have cross-attention
        depth: number of layers of the stack; equal layers are drawn once
        unroll: if not 0, draw each layer of a stack of this depth instead
        kinds: sub-layers of one layer, by default those of an encoder or decoder
        options: options inside sub-layers to show, such as {"gate": "element"}

    Raises:
        UserError: if the wiring is unknown, or `depth` or `unroll` is out of range
    """
    if not 1 <= depth <= MAX_DEPTH:
        raise UserError(f"depth: expected 1 to {MAX_DEPTH} layers, got {depth}")
    if not 0 <= unroll <= MAX_DRAWN_LAYERS:
        raise UserError(f"unroll: expected 0 to {MAX_DRAWN_LAYERS} layers, got {unroll}")
    call = wirings.resolve(call)
    card = wirings.card(call.name)
    kinds = kinds or (DECODER_KINDS if decoder else ENCODER_KINDS)
    notes = describe_options(options or {})
    stack, recording = _record_placeholder_stack(str(call), kinds, unroll or depth, notes)
    runs = None if unroll else _find_equal_runs(stack.wiring, recording)
    if runs is None:
        num_layers = unroll or NUM_UNEQUAL_LAYERS
        if num_layers != stack.wiring.plan.depth:
            stack, recording = _record_placeholder_stack(str(call), kinds, num_layers, notes)
        runs = [(layer, 1) for layer in range(num_layers)]
    builder = _build_layers(stack.wiring, recording, [layer for layer, _ in runs])
    for index, (first, count) in enumerate(runs):
        if count > 1:
            following = _build_layer_graph(stack.wiring, recording, first + 1)
            _add_next_layer_outputs(builder, recording, first, index, following)
    graph = simplify(builder.nodes)
    for index, (first, count) in enumerate(runs):
        first_and_last = (
            _build_layer_graph(stack.wiring, recording, layer)
            for layer in (first, first + count - 1)
        )
        graph = _label_ranges(graph, index, *first_and_last)
    graph = remove_neutral(graph)
    title = card.title + str(call).removeprefix(call.name)
    return BlockDiagram(
        title, str(call), format_formula(card.formula), graph, tuple(n for _, n in runs)
    )


def name_norms(block: BlockDiagram, norm: str) -> BlockDiagram:
    """Return the diagram with the title of `norm`, a call string, in place of the label Norm."""
    title = norms.card(norms.resolve(norm).name).title
    graph = {
        id: replace(node, label=title) if node.label == "Norm" else node
        for id, node in block.graph.items()
    }
    return replace(block, graph=graph)


def _record_placeholder_stack(
    call: str, kinds: tuple[str, ...], depth: int, notes: Notes
) -> tuple[Stack, Record]:
    """Build a stack of placeholders and record it.

    Raises:
        RuntimeError: if the record does not reproduce the stack's output on another input
    """
    decoder = "cross" in kinds
    role, other = ("decoder", depth) if decoder else ("encoder_only", None)
    sublayers = build_sublayers(kinds, depth, DIM, notes)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        stack = Stack(
            sublayers, dim=DIM, wiring=call, kinds=kinds, role=role, other_depth=other
        ).eval()
        for sublayer in sublayers:
            sublayer.notes = (*sublayer.notes, *describe_random_depth(stack.wiring))
        x, another, memory = torch.randn(3, BATCH, LENGTH, DIM).unbind()
        context = {"memory": memory} if decoder else {}
        recording = record(stack, x, **context)
        if not torch.allclose(recording.replay(another), stack(another, **context), atol=1e-4):
            raise RuntimeError(
                f"{call}: the recorded operations do not reproduce the forward pass, so a diagram "
                "of them would be wrong; use torch functions only"
            )
    return stack, recording


def _find_equal_runs(wiring: Wiring, recording: Record) -> list[tuple[int, int]] | None:
    """Return first layer and length of each run of equal layers; None if there are too many.

    None is also returned if the number of entries of the state changes between layers.
    """
    if len({len(state) for state in recording.states}) > 1:
        return None
    layers = range(wiring.plan.depth)
    runs = [
        list(run)
        for _, run in groupby(
            layers, key=lambda i: _signature(_build_layer_graph(wiring, recording, i))
        )
    ]
    return [(run[0], len(run)) for run in runs] if len(runs) <= MAX_RUNS else None


def _build_layer_graph(wiring: Wiring, recording: Record, layer: int) -> Graph:
    """Return the simplified graph of one layer, from its first state to its last."""
    builder = _make_builder(wiring, recording)
    for position, value in enumerate(recording.states[layer]):
        builder.add_source(value, f"state {position}", slot=position)
    _add_layer_ops(builder, recording, layer, 0)
    for position, value in enumerate(recording.states[layer + 1]):
        if builder.find_node(value) is not None:
            builder.add_sink(value, f"state {position}", 0)
    return simplify(builder.nodes)


def _signature(graph: Graph) -> tuple[object, ...]:
    """Return what two layers must share to be drawn as one: everything but constant factors."""
    order = {id: index for index, id in enumerate(graph)}
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
    """Return a graph of the given layers, each linked to the one before, with input and output."""
    builder = _make_builder(wiring, recording)
    builder.add_source(recording.source, "x")
    _add_layer_ops(builder, recording, OPEN, -1)
    state = recording.states[0]
    for index, layer in enumerate(layers):
        _link_states(builder, recording.states[layer], state)
        _add_layer_ops(builder, recording, layer, index)
        state = recording.states[layer + 1]
    for verb_state in recording.verb_states:
        for position, value in enumerate(verb_state):
            builder.set_slot(value, position)
    _link_states(builder, recording.states[-1], state)
    _add_layer_ops(builder, recording, CLOSE, -2)
    builder.add_sink(recording.result, "y", -2)
    return builder


def _add_next_layer_outputs(
    builder: GraphBuilder, recording: Record, layer: int, index: int, following: Graph
) -> None:
    """Add an output "next layer" for entries of the state that only the next layer reads.

    The next layer of a run is not drawn. Without such an output, the nodes that make these entries
    would be pruned.
    """
    reached = prune_unused(builder.nodes)
    read = {
        following[edge.source].slot
        for node in following.values()
        for edge in node.inputs
        if node.kind != "output" and following[edge.source].kind == "input"
    }
    for position, value in enumerate(recording.states[layer + 1]):
        node = builder.find_node(value)
        if position in read and node is not None and node not in reached:
            builder.add_sink(value, "next layer", index)


def _label_ranges(graph: Graph, index: int, first: Graph, last: Graph) -> Graph:
    """Label factors that change along a run of layers with their first and last value."""
    scales = [n for n in graph.values() if n.kind == "scale" and n.layer == index]
    pairs = list(zip(find_nodes(first, "scale"), find_nodes(last, "scale"), strict=True))
    if len(pairs) != len(scales):  # the drawn layer was simplified together with its neighbors
        return graph
    changed = {
        node.id: replace(node, label=f"{low.label} … {_last_word(high.label)}", neutral=False)
        for node, (low, high) in zip(scales, pairs, strict=True)
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
    """Make the state at the start of a layer the state at the end of the layer drawn below it."""
    for value, other in zip(state, previous_state, strict=True):
        if value is not other:
            builder.add_alias(value, other)


def _add_layer_ops(builder: GraphBuilder, recording: Record, layer: int, index: int) -> None:
    for op in recording.ops:
        if op.layer == layer:
            builder.add_op(op, index)


def _constants(wiring: Wiring) -> dict[float, str]:
    """Return the names of float attributes of a wiring by value, where the name is unique."""
    named: dict[float, list[str]] = {}
    for name, value in vars(wiring).items():
        if isinstance(value, float) and not name.startswith("_") and value not in (0.0, 1.0):
            named.setdefault(value, []).append(name)
    return {value: names[0] for value, names in named.items() if len(names) == 1}


def find_nodes(graph: Graph, kind: str) -> list[Node]:
    """Return the nodes of a kind in the order of execution."""
    return [node for node in graph.values() if node.kind == kind]
