"""Graph of one forward pass: nodes in the order of execution, and walks over them.

Edges connect *active* nodes only: floating-point results that are computed from the input of the
model. Position tables, masks and weights are operands, but not edges, so a walk never leaves the
data flow. An embedding starts a stream if its indices depend on the input.

    model code                    node                       active   inputs
    ids                           0 input (integers)         no
    x = table(ids)                1 embedding(weight, 0)     yes
    p = positions[:5]             2 getitem(weight)          no
    x = x + p                     3 add(1, 2)                yes      (1,)
    y = linear(x)                 4 linear(3, weight)        yes      (3,)

    graph.reaches(1, 4)           True
    graph.trace_back(3)           [(3, ())]: the sum with a table is not a scale

Inputs always have lower indices than the node, so every walk back terminates, and a *floor* bounds
it: nothing older than the floor can be on a path that starts there.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from addnorm.doctor.graph.nodes import Node, Operand, Scale, Shape
from addnorm.doctor.graph.ops import (
    BORROWS_METADATA,
    EMBEDDINGS,
    LOOKUPS,
    METADATA,
    PASS_THROUGH,
    SCALES,
    is_mixing,
)

MAX_WALK_STEPS = 1_000_000
"""Steps of all walks in one graph before distant nodes are ignored; ten times the largest model
tested."""
MAX_NEAR_NODES = 300
"""Distance that a walk back covers once that budget is spent."""


class Graph:
    """Nodes of one forward pass; every node is computed from earlier ones."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.walk_steps = 0
        """Steps of all walks so far. An unrolled recurrence would cost the square of its length
        without a budget."""

    @property
    def over_budget(self) -> bool:
        """Whether walks are limited to near nodes from now on."""
        return self.walk_steps > MAX_WALK_STEPS

    def __getitem__(self, index: int) -> Node:
        return self.nodes[index]

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def add(
        self,
        op: str,
        operands: tuple[Operand, ...],
        shape: Shape,
        *,
        is_floating: bool,
        is_source: bool = False,
        **attributes: Any,
    ) -> Node:
        """Append the node of one operation.

        Args:
            op: canonical name of the operation
            operands: its arguments
            shape: shape of the result
            is_floating: whether the result is floating point
            is_source: whether a stream may start here, as at a floating-point input
            **attributes: further fields of the node
        """
        reads_values = op not in METADATA
        nodes = [self.nodes[o.node] for o in operands if o.kind == "node"]
        inputs = [node.index for node in nodes if node.active] if reads_values else []
        if op in BORROWS_METADATA:  # only the first operand contributes values
            first = operands[0] if operands else None
            reads_first = (
                first is not None and first.kind == "node" and self.nodes[first.node].active
            )
            inputs = inputs[:1] if reads_first else []
        depends_on_input = (
            is_source
            or op == "input"
            or (reads_values and any(node.depends_on_input for node in nodes))
        )
        active = is_floating and bool(
            inputs or is_source or (depends_on_input and self._is_lookup(op, operands))
        )
        learned = not active and (
            any(o.kind == "weight" for o in operands) or any(node.learned for node in nodes)
        )
        node = Node(
            len(self.nodes),
            op,
            operands,
            shape,
            active=active,
            depends_on_input=depends_on_input,
            learned=learned,
            **attributes,
        )
        if active:
            node.inputs = tuple(dict.fromkeys(inputs))
            for index in node.inputs:
                self.nodes[index].users.append(node.index)
        self.nodes.append(node)
        self._inherit_flags(node)
        return node

    def _inherit_flags(self, node: Node) -> None:
        parents = [self.nodes[index] for index in node.inputs]
        own = node.index if is_mixing(node.op) else -1
        node.last_mixing = max((own, *(parent.last_mixing for parent in parents)))
        node.from_float_input = node.op == "input" or any(
            parent.from_float_input for parent in parents
        )

    def _is_lookup(self, op: str, operands: tuple[Operand, ...]) -> bool:
        """Return whether an operation selects rows of a weight: an embedding, `table[ids]`, or
        `one_hot(ids) @ table`."""
        reads_weight = any(
            o.kind == "weight" or (o.kind == "node" and self.nodes[o.node].learned)
            for o in operands
        )
        return op in EMBEDDINGS or (reads_weight and (op in LOOKUPS or is_mixing(op)))

    # learned nodes

    def all_nodes_between(self, start: int, end: int) -> set[int]:
        """Return the nodes on all paths from `start` to `end`, learned nodes included; empty if
        there is no path."""
        reached = {start}
        for index in range(start + 1, end + 1):
            node = self.nodes[index]
            if node.op not in METADATA and any(o.node in reached for o in node.operands):
                reached.add(index)
        path = {end} & reached
        for index in range(end, start, -1):
            if index in path:
                path |= {o.node for o in self.nodes[index].operands if o.node in reached}
        return path

    def learned_ancestors(self, end: int) -> set[int]:
        """Return a node and the learned nodes it depends on, at most `MAX_NEAR_NODES`."""
        visited, waiting = {end}, [end]
        while waiting and len(visited) < MAX_NEAR_NODES:
            for operand in self.nodes[waiting.pop()].operands:
                is_new = operand.kind == "node" and operand.node not in visited
                if is_new and self.nodes[operand.node].learned:
                    visited.add(operand.node)
                    waiting.append(operand.node)
        return visited

    def mark_as_stream(self, indices: AbstractSet[int]) -> None:
        """Turn learned nodes into active ones, so that they form a stream."""
        for index in sorted(indices):
            node = self.nodes[index]
            node.active, node.learned = True, False
            known = set(node.inputs)
            node.inputs = tuple(dict.fromkeys(o.node for o in node.operands if self._is_active(o)))
            for earlier in set(node.inputs) - known:
                self.nodes[earlier].users.append(index)
            self._inherit_flags(node)

    # walks

    def ancestors(self, end: int, floor: int = 0) -> set[int]:
        """Return `end` and the nodes it is computed from, down to the index `floor`."""
        visited, waiting = {end}, [end]
        floor = max(floor, end - MAX_NEAR_NODES) if self.over_budget else floor
        while waiting:
            for index in self.nodes[waiting.pop()].inputs:
                if index >= floor and index not in visited:
                    visited.add(index)
                    waiting.append(index)
        self.walk_steps += len(visited)
        return visited

    def data_ancestors(self, *ends: int) -> set[int]:
        """Return these nodes and all nodes they read, integers, masks and weights included."""
        visited, waiting = set(ends), list(ends)
        while waiting:
            for operand in self.nodes[waiting.pop()].operands:
                if operand.kind == "node" and operand.node not in visited:
                    visited.add(operand.node)
                    waiting.append(operand.node)
        return visited

    def has_path_avoiding(self, start: int, end: int, *, blocked: AbstractSet[int]) -> bool:
        """Return whether a path from `start` to `end` crosses none of the blocked nodes."""
        visited, waiting = {end}, [end]
        while waiting:
            for index in self.nodes[waiting.pop()].inputs:
                if index == start:
                    return True
                if index > start and index not in visited and index not in blocked:
                    visited.add(index)
                    waiting.append(index)
        return False

    def reaches(self, start: int, end: int) -> bool:
        """Return whether `end` is `start` or is computed from it."""
        return start == end or (start < end and start in self.ancestors(end, start))

    def nodes_between(self, start: int, end: int) -> set[int]:
        """Return the nodes on all paths from `start` to `end`, and `start` itself."""
        path = {start}
        for index in sorted(self.ancestors(end, start)):
            if index != start and any(earlier in path for earlier in self.nodes[index].inputs):
                path.add(index)
        return path

    def has_weights(self, nodes: AbstractSet[int]) -> bool:
        """Return whether one of these nodes reads a weight."""
        operands = (o for index in nodes for o in self.nodes[index].operands)
        return any(
            o.kind == "weight" or (o.kind == "node" and self.nodes[o.node].learned)
            for o in operands
        )

    def has_mixing(self, nodes: AbstractSet[int], *, exclude: int | None = None) -> bool:
        """Return whether one of these nodes mixes features or tokens."""
        return any(is_mixing(self.nodes[index].op) for index in nodes if index != exclude)

    # chains of operations that keep a stream what it is

    def parent_through_scale(self, index: int) -> tuple[int, Scale | None] | None:
        """Step back through an operation that only passes a stream on or scales it.

        Returns:
            The node before and the scale, if the operation is one; None for other operations.
        """
        node = self.nodes[index]
        if len(node.inputs) != 1:
            return None
        if node.op in PASS_THROUGH or self._is_add_zero(node):
            return node.inputs[0], None
        if node.op not in SCALES:
            return None
        if node.op == "neg":
            return node.inputs[0], Scale("constant", -1.0, (), index)
        if node.op == "div" and node.operands and node.operands[0].kind != "node":
            return None  # a constant divided by the stream
        others = [o for o in node.operands if not self._is_active(o)]
        if not others:
            return None  # x * x
        return node.inputs[0], self.make_scale(others[0], index, inverse=node.op == "div")

    def _is_add_zero(self, node: Node) -> bool:
        """Return whether a node is `x + 0`, the first step of `sum([x, y])`."""
        others = [o for o in node.operands if not self._is_active(o)]
        return node.op in ("add", "sub") and len(others) == 1 and others[0].value == 0

    def _is_active(self, operand: Operand) -> bool:
        return operand.kind == "node" and self.nodes[operand.node].active

    def make_scale(self, operand: Operand, node_index: int, *, inverse: bool = False) -> Scale:
        """Return the scale that an operand is at the node that multiplies by it."""
        value, shape, kind = operand.value, operand.shape, operand.kind
        if kind == "node":
            node = self.nodes[operand.node]
            value, shape = node.value, node.shape
            kind = "weight" if node.learned else "constant"
            if node.depends_on_input and not node.learned:
                return Scale("input", None, shape, node_index)
        if inverse and value:
            value = 1 / value
        return Scale("weight" if kind == "weight" else "constant", value, shape, node_index)

    def trace_back(self, index: int) -> list[tuple[int, tuple[Scale, ...]]]:
        """Walk back through scales and operations that only pass a stream on.

        Returns:
            Each node of the walk, `index` first, with the scales between it and `index`.
        """
        chain: list[tuple[int, tuple[Scale, ...]]] = [(index, ())]
        while (step := self.parent_through_scale(index)) is not None:
            index, scale = step
            scales = chain[-1][1]
            chain.append((index, scales if scale is None else (*scales, scale)))
        return chain

    def forward_reach(self, index: int, *, extra_ops: frozenset[str] = frozenset()) -> set[int]:
        """Walk forward through scales, biases and operations that only pass a stream on.

        Args:
            index: node where the walk starts; it is not part of the result
            extra_ops: further operations that the walk passes through

        Returns:
            Every node reached, including the operations at which the walk ends.
        """
        reached: set[int] = set()
        waiting = [index]
        while waiting:
            for user in self.nodes[waiting.pop()].users:
                if user in reached:
                    continue
                reached.add(user)
                node = self.nodes[user]
                if (
                    node.op in PASS_THROUGH
                    or (node.op in SCALES and len(node.inputs) == 1)
                    or node.op in extra_ops
                    or (node.op in ("add", "sub") and len(node.inputs) == 1)
                ):
                    waiting.append(user)
        return reached
