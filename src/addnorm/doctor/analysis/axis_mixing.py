"""Steps: where the axes of a stream are mixed, each operation followed by its layouts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from addnorm.doctor.graph.axis_layout import (
    FOREIGN_AXIS,
    Axis,
    Layout,
    collect_origins,
    identity_layout,
    knowledge_rank,
    make_axis,
    reshape_layout,
    resize_axis,
)
from addnorm.doctor.graph.contractions import operand_shape, tensor_operands, to_einsum
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node, Operand, Shape
from addnorm.doctor.graph.ops import (
    ATTENTION,
    CONVOLUTION,
    CUMULATIVE,
    FOURIER,
    POOLING,
    PRODUCT,
    RECURRENT,
    REDUCTIONS,
    TRANSPOSES,
)

AXIS_DROPS = frozenset({"select", "unbind"})


@dataclass(frozen=True, slots=True)
class AxisMixing:
    """An operation that mixes along axes of the stream."""

    node: int
    kind: str
    """product (of two activations), weights, kernel, sum, running, fourier; or channels, which
    says only that a kernel takes these axes for its features."""
    origins: frozenset[int]


def trace_axes(
    graph: Graph, nodes: Iterable[int], *, starts: Iterable[int]
) -> tuple[dict[int, Layout], list[AxisMixing]]:
    """The layout of every node that is made of these, and the steps that mix their axes."""
    known = {start: identity_layout(graph[start].shape) for start in starts}
    steps: list[AxisMixing] = []
    for index in sorted(nodes):
        node = graph[index]
        if node.active and index not in known and any(i in known for i in node.inputs):
            found = _AxisTracer(graph, node, known, steps).compute_layout()
            if len(found) != len(node.shape):  # not what was expected: any axis may hold any
                found = tuple(make_axis(collect_origins(found), size) for size in node.shape)
            known[index] = found
    return known, steps


@dataclass(slots=True)
class _AxisTracer:
    """One operation, and what is known before it."""

    graph: Graph
    node: Node
    known: dict[int, Layout]
    steps: list[AxisMixing]

    def compute_layout(self) -> Layout:
        node, op = self.node, self.node.op
        if op in PRODUCT or op in ("linear", "cdist"):
            found = self._product_layout()
            if found is not None:
                return found
        source = next(i for i in node.inputs if i in self.known)
        mine, shape = self.known[source], self.graph[source].shape
        if not shape:  # one number, which goes everywhere
            return tuple(make_axis((), size) for size in node.shape)
        if op in ATTENTION:
            self._record_mixing("product", [make_axis({FOREIGN_AXIS}, 2)])
        elif op in RECURRENT - {"gru_cell", "lstm_cell"}:
            self._record_mixing("running", mine[:-1])
        elif op in CUMULATIVE or op in FOURIER:
            how = "running" if op in CUMULATIVE else "fourier"
            self._record_mixing(how, [mine[i] for i in self._dims(len(shape))])
        elif op in CONVOLUTION or op in POOLING:
            self._record_kernel(mine, shape)
        elif op in REDUCTIONS and ("dim" in node.detail or node.size == 1):
            return self._reduce_layout(mine, source=source)
        elif op in TRANSPOSES and len(shape) == len(node.shape):
            return tuple(mine[i] for i in self._axis_order(len(shape)))
        elif op == "unfold" and len(node.shape) == len(shape) + 1:
            dim = self._number_operands()[0] % len(shape)
            wide = (*mine, make_axis(collect_origins([mine[dim]]), node.shape[-1]))
            return self._fit_sizes(wide)
        elif op in AXIS_DROPS:
            dim = (self._number_operands() or [0])[0] % len(shape)
            return self._fit_sizes(mine[:dim] + mine[dim + 1 :])
        elif op == "stack":
            dim = int(node.detail.get("dim", 0)) % len(node.shape)
            return self._fit_sizes((*mine[:dim], (), *mine[dim:]))
        elif op == "getitem" and "index" in node.detail:
            found = self._index_layout(mine)
            if len(found) == len(node.shape):
                return self._fit_sizes(found)
        return self._default_layout(mine, shape)

    def _record_mixing(self, kind: str, axes: Iterable[Axis]) -> None:
        held = collect_origins(axes)
        if held:
            self.steps.append(AxisMixing(self.node.index, kind, held))

    def _number_operands(self) -> list[int]:
        return [
            int(o.value) for o in self.node.operands if o.kind == "number" and o.value is not None
        ]

    def _is_active(self, operand: Operand) -> bool:
        return operand.kind == "node" and self.graph[operand.node].active

    def _operand_layout(self, operand: Operand) -> Layout:
        """The layout of an operand, made of the stream or not."""
        if operand.node in self.known:
            return self.known[operand.node]
        held = {FOREIGN_AXIS} if self._is_active(operand) else set[int]()
        return tuple(make_axis(held, size) for size in operand_shape(self.graph, operand))

    def _fit_sizes(self, layout: Layout) -> Layout:
        """The same axes with the sizes of the result."""
        return tuple(map(resize_axis, layout, self.node.shape))

    # products

    def _product_layout(self) -> Layout | None:
        """A product as an einsum: what is summed over, and where the rest goes."""
        tensors = tensor_operands(self.node)
        if self.node.op in ("addmm", "baddbmm"):
            tensors = tensors[1:]
        if self.node.op == "linear":
            tensors = tensors[:2]
        shapes = [operand_shape(self.graph, o) for o in tensors]
        spelt = to_einsum(self.node.op, shapes, detail=self.node.detail)
        if spelt is None or len(spelt[1]) != len(self.node.shape):
            return None
        terms, out = spelt
        found: dict[str, Axis] = {}
        for operand, term in zip(tensors, terms, strict=True):
            for letter, axis in zip(term, self._operand_layout(operand), strict=True):
                found[letter] = max(found.get(letter, ()), axis, key=knowledge_rank)
        summed = [letter for letter in dict.fromkeys("".join(terms)) if letter not in out]
        for letter in summed:
            self._record_contraction(letter, tensors, terms=terms)
        made = collect_origins(found[letter] for letter in summed)
        return tuple(
            found[letter] if collect_origins([found[letter]]) else make_axis(made, size)
            for letter, size in zip(out, self.node.shape, strict=True)
        )

    def _record_contraction(
        self, letter: str, tensors: Sequence[Operand], *, terms: list[str]
    ) -> None:
        """An axis is gone: by a product of two activations, of weights and one, or by a sum."""
        have = [(o, t.index(letter)) for o, t in zip(tensors, terms, strict=True) if letter in t]
        live = [o for o, _ in have if self._is_active(o)]
        chosen = (self.graph[o.node] for o, _ in have if o.kind == "node")
        if len(live) == 1 and any(
            n.depends_on_input and not n.active and not n.learned for n in chosen
        ):
            return  # tokens are picked, as for an expert
        how = "product" if len(live) > 1 else "weights" if len(have) > 1 else "sum"
        self._record_mixing(
            how, [self.known[o.node][place] for o, place in have if o.node in self.known]
        )

    # sums and kernels

    def _dims(self, rank: int) -> list[int]:
        """The axes that an operation was told, or takes by itself."""
        said = self.node.detail.get("dim")
        if said is not None:
            return [int(i) % rank for i in (said if isinstance(said, list | tuple) else [said])]
        return list(range(rank))[{"2": -2, "n": -rank}.get(self.node.op[-1], -1) :]

    def _reduce_layout(self, mine: Layout, *, source: int) -> Layout:
        if "dim" not in self.node.detail:
            return ((),) * len(self.node.shape)  # one number for all
        dims = self._dims(len(mine))
        self._record_mixing(
            "product" if self._is_weighted_sum(source, dims) else "sum", [mine[i] for i in dims]
        )
        if len(self.node.shape) == len(mine):
            return tuple(() if i in dims else axis for i, axis in enumerate(mine))
        return tuple(axis for i, axis in enumerate(mine) if i not in dims)

    def _is_weighted_sum(self, source: int, dims: list[int]) -> bool:
        """Whether weights of pairs and values were multiplied: each entry of an axis has its own
        sum over the same axis."""
        made = self.graph[self.graph.trace_back(source)[-1][0]]
        live = {o.node for o in made.operands if self._is_active(o)}
        if made.op != "mul" or len(live) < 2:
            return False
        rest = collect_origins(axis for i, axis in enumerate(self.known[source]) if i not in dims)
        return collect_origins(self.known[source][i] for i in dims) <= rest | {FOREIGN_AXIS}

    def _record_kernel(self, mine: Layout, shape: Shape) -> None:
        """Kernels stand on the last axes; channels before them."""
        if self.node.op in POOLING:
            place = len(shape) - int(self.node.op[-2]) - 1
            self._record_mixing("channels", [mine[place]])
            self._record_mixing("sum", mine[place + 1 :])
            return
        kernel = next(
            (s for o in self.node.operands[1:] if len(s := operand_shape(self.graph, o)) > 2), None
        )
        if kernel is None:
            return
        place = len(shape) - len(kernel) + 1
        if self.node.op == "conv_tbc":  # (length, in, out) on (tokens, examples, channels)
            self._record_mixing("channels", mine[-1:])
            self._record_mixing("weights", mine[-1:])
            self._record_mixing("kernel", mine[:1] if kernel[0] > 1 else [])
            return
        self._record_mixing("channels", [mine[place]])
        if kernel[1] > 1:
            self._record_mixing("weights", [mine[place]])
        on = zip(mine[place + 1 :], kernel[2:], strict=True)
        self._record_mixing("kernel", [axis for axis, size in on if size > 1])

    # everything else

    def _axis_order(self, rank: int) -> list[int]:
        numbers = [i % rank for i in self._number_operands()] if rank else []
        order = list(range(rank))
        if self.node.op == "permute":
            return numbers if len(numbers) == rank else order
        if self.node.op in ("movedim", "moveaxis"):
            half = len(numbers) // 2
            moved = dict(zip(numbers[half:], numbers[:half], strict=True))
            rest = iter(i for i in order if i not in numbers[:half])
            return [moved[i] if i in moved else next(rest) for i in order]
        if self.node.op in ("T", "H"):
            return order[::-1]
        one, other = numbers if len(numbers) == 2 else (rank - 2, rank - 1)
        if rank > 1:
            order[one], order[other] = order[other], order[one]
        return order

    def _index_layout(self, mine: Layout) -> Layout:
        pattern = self.node.detail["index"]
        used = sum(int(sign) if sign.isdigit() else sign not in "n." for sign in pattern)
        if "." not in pattern:
            pattern += "."
        pattern = pattern.replace(".", ":" * (len(mine) - used))
        found: list[Axis] = []
        place = 0
        for sign in pattern:
            count = int(sign) if sign.isdigit() else sign != "n"
            if sign == "n":
                found.append(())
            elif sign != "i":
                found.append(tuple(part for axis in mine[place : place + count] for part in axis))
            place += count
        return tuple(found)

    def _default_layout(self, mine: Layout, shape: Shape) -> Layout:
        """What most operations do: each entry by itself, or the same entries in another shape, or
        more or fewer along an axis; where nothing is known, any axis may hold any."""
        out = self.node.shape
        tensors = tensor_operands(self.node)
        alone = sum(map(self._is_active, tensors)) == 1
        if alone and math.prod(shape) == math.prod(out):
            return mine if shape == out else reshape_layout(mine, out)
        if len(out) >= max(
            len(operand_shape(self.graph, o)) for o in tensors if self._is_active(o)
        ):
            wide = [self._broadcast_layout(o) for o in tensors if self._is_active(o)]
            if all(layout is not None for layout in wide):
                columns = zip(*(layout for layout in wide if layout is not None), strict=True)
                return tuple(
                    max(column, key=knowledge_rank) or make_axis((), size)
                    for column, size in zip(columns, out, strict=True)
                )
        if len(shape) == len(out):
            return self._fit_sizes(mine)
        every = collect_origins(mine)
        sizes = {size: axis for axis, size in zip(mine, shape, strict=True)}
        return tuple(sizes.get(size, make_axis(every, size)) for size in out)

    def _broadcast_layout(self, operand: Operand) -> Layout | None:
        """An operand's layout spread to the shape of the result; None if it does not fit."""
        out, shape = self.node.shape, operand_shape(self.graph, operand)
        ahead = len(out) - len(shape)
        if ahead < 0 or any(s not in (1, o) for s, o in zip(shape, out[ahead:], strict=True)):
            return None
        return ((),) * ahead + self._operand_layout(operand)
