"""The graph of one forward: nodes in the order of time, and how to walk among them."""

from collections.abc import Iterator
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
"""Steps of walks in one graph; the largest model tried takes a tenth of them."""
MAX_NEAR_NODES = 300
"""How far back a walk goes from then on."""


class Graph:
    """Nodes, each made of earlier ones."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.walk_steps = 0
        """Steps of all walks so far: a long recurrence written out must not cost their square."""

    @property
    def over_budget(self) -> bool:
        """Whether so much was walked that only near ways are looked at from now on."""
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
        """File one operation. source: it is where a stream may begin."""
        flows = op not in METADATA
        nodes = [self.nodes[o.node] for o in operands if o.kind == "node"]
        active = [node.index for node in nodes if node.active] if flows else []
        if op in BORROWS_METADATA:
            first = operands[0] if operands else None
            own = first is not None and first.kind == "node" and self.nodes[first.node].active
            active = active[:1] if own else []
        data = (
            is_source or op == "input" or (flows and any(node.depends_on_input for node in nodes))
        )
        alive = is_floating and bool(
            active or is_source or (data and self._is_lookup(op, operands))
        )
        learned = not alive and (
            any(o.kind == "weight" for o in operands) or any(node.learned for node in nodes)
        )
        node = Node(
            len(self.nodes),
            op,
            operands,
            shape,
            active=alive,
            depends_on_input=data,
            learned=learned,
            **attributes,
        )
        if alive:
            node.inputs = tuple(dict.fromkeys(active))
            for index in node.inputs:
                self.nodes[index].users.append(node.index)
        self.nodes.append(node)
        self._inherit_flags(node)
        return node

    def _inherit_flags(self, node: Node) -> None:
        behind = [self.nodes[index] for index in node.inputs]
        own = node.index if is_mixing(node.op) else -1
        node.last_mixing = max((own, *(earlier.last_mixing for earlier in behind)))
        node.from_float_input = node.op == "input" or any(
            earlier.from_float_input for earlier in behind
        )

    def _is_lookup(self, op: str, operands: tuple[Operand, ...]) -> bool:
        """Whether an operation turns integers of the input into rows of a table: an embedding,
        table[ids], one_hot(ids) @ table."""
        table = any(
            o.kind == "weight" or (o.kind == "node" and self.nodes[o.node].learned)
            for o in operands
        )
        return op in EMBEDDINGS or (table and (op in LOOKUPS or is_mixing(op)))

    def all_nodes_between(self, start: int, end: int) -> set[int]:
        """Every node on a way from `start` to `end`, learned ones included; empty without one."""
        made = {start}
        for index in range(start + 1, end + 1):
            node = self.nodes[index]
            if node.op not in METADATA and any(o.node in made for o in node.operands):
                made.add(index)
        way = {end} & made
        for index in range(end, start, -1):
            if index in way:
                way |= {o.node for o in self.nodes[index].operands if o.node in made}
        return way

    def learned_ancestors(self, end: int) -> set[int]:
        """The node and everything learned behind it, as far as the next few hundred."""
        seen, waiting = {end}, [end]
        while waiting and len(seen) < MAX_NEAR_NODES:
            for operand in self.nodes[waiting.pop()].operands:
                known = operand.kind != "node" or operand.node in seen
                if not known and self.nodes[operand.node].learned:
                    seen.add(operand.node)
                    waiting.append(operand.node)
        return seen

    def mark_as_stream(self, indices: set[int]) -> None:
        """Let learned values be a stream of their own."""
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
        """Everything `end` is made of, itself included, that is not older than `floor`."""
        seen, waiting = {end}, [end]
        floor = max(floor, end - MAX_NEAR_NODES) if self.over_budget else floor
        while waiting:
            for index in self.nodes[waiting.pop()].inputs:
                if index >= floor and index not in seen:
                    seen.add(index)
                    waiting.append(index)
        self.walk_steps += len(seen)
        return seen

    def has_path_avoiding(self, start: int, end: int, *, blocked: set[int]) -> bool:
        """Whether there is a way from `start` to `end` that does not touch these nodes."""
        seen, waiting = {end}, [end]
        while waiting:
            for index in self.nodes[waiting.pop()].inputs:
                if index == start:
                    return True
                if index > start and index not in seen and index not in blocked:
                    seen.add(index)
                    waiting.append(index)
        return False

    def reaches(self, start: int, end: int) -> bool:
        """Whether `end` is made of `start`."""
        return start == end or (start < end and start in self.ancestors(end, start))

    def nodes_between(self, start: int, end: int) -> set[int]:
        """Every node on a way from `start` to `end`, both included."""
        on = {start}
        for index in sorted(self.ancestors(end, start)):
            if index != start and any(earlier in on for earlier in self.nodes[index].inputs):
                on.add(index)
        return on

    def has_weights(self, nodes: set[int]) -> bool:
        """Whether one of these nodes takes a weight."""
        operands = (o for index in nodes for o in self.nodes[index].operands)
        return any(
            o.kind == "weight" or (o.kind == "node" and self.nodes[o.node].learned)
            for o in operands
        )

    def has_mixing(self, nodes: set[int], *, exclude: int = -1) -> bool:
        """Whether one of these nodes mixes."""
        return any(is_mixing(self.nodes[index].op) for index in nodes if index != exclude)

    # chains of operations that leave a stream what it is

    def parent_through_scale(self, index: int) -> tuple[int, Scale | None] | None:
        """One step back through an operation that only passes on or scales."""
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
            return None  # something divided by the stream
        others = [o for o in node.operands if not self._is_active(o)]
        if not others:
            return None  # a square
        return node.inputs[0], self.make_scale(others[0], index, inverse=node.op == "div")

    def _is_add_zero(self, node: Node) -> bool:
        """x + 0, as sum([x, y]) begins."""
        others = [o for o in node.operands if not self._is_active(o)]
        return node.op in ("add", "sub") and len(others) == 1 and others[0].value == 0

    def _is_active(self, operand: Operand) -> bool:
        return operand.kind == "node" and self.nodes[operand.node].active

    def make_scale(self, operand: Operand, node_index: int, *, inverse: bool = False) -> Scale:
        """An operand that multiplies a stream, as a scale."""
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
        """Back through all that only passes on, and the scales met until then."""
        found: list[tuple[int, tuple[Scale, ...]]] = [(index, ())]
        while (step := self.parent_through_scale(index)) is not None:
            index, scale = step
            scales = found[-1][1]
            found.append((index, scales if scale is None else (*scales, scale)))
        return found

    def forward_reach(self, index: int, *, extra_ops: frozenset[str] = frozenset()) -> set[int]:
        """Every node reached through operations that only pass on, and those that end there."""
        found: set[int] = set()
        waiting = [index]
        while waiting:
            for kid in self.nodes[waiting.pop()].users:
                if kid in found:
                    continue
                found.add(kid)
                node = self.nodes[kid]
                passes = node.op in PASS_THROUGH or (node.op in SCALES and len(node.inputs) == 1)
                if (
                    passes
                    or node.op in extra_ops
                    or (node.op in ("add", "sub") and len(node.inputs) == 1)
                ):
                    waiting.append(kid)
        return found
