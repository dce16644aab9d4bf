"""Axis mixing: which operations mix entries along which axes of a stream.

Each node gets a layout (`graph/axis_layout.py`): the axes of the stream that its axes come from.
An operation that sums over an axis, or applies a kernel along it, mixes the axes it holds.

Example: attention weights times values, with a stream x of shape (2, 7, 12).

    operation                          layout of the result          mixing recorded
    v = value(x)                       [-3], [-2], [-1]              weights along {-1}
    s = q(x) @ k(x).mT                 [-3], [-2], [-2]              product along {-1}
    y = softmax(s) @ v                 [-3], [-2], [-1]              product along {-2}

`y` sums over an axis of two activations that holds tokens (-2): this is where tokens attend to
each other. Features that a matrix creates count as the axis that the matrix sums over.

Where an operation is not known, any axis of the result may hold any axis of its input.
"""

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
    BORROWS_METADATA,
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
    """An operation that mixes entries along axes of the stream."""

    node: int
    kind: str
    """product (of two activations), weights, kernel, sum, running (a scan) or fourier. channels
    does not mix: it says that a kernel treats these axes as features."""
    origins: frozenset[int]
    """Axes of the stream, counted from the end."""


def trace_axes(
    graph: Graph, nodes: Iterable[int], *, starts: Iterable[int]
) -> tuple[dict[int, Layout], list[AxisMixing]]:
    """Follow the axes of a stream through a set of nodes.

    Args:
        graph: recorded graph
        nodes: nodes to follow
        starts: nodes whose axes are those of the stream

    Returns:
        The layout of each node that depends on the starts, and the operations that mix.
    """
    known = {start: identity_layout(graph[start].shape) for start in starts}
    steps: list[AxisMixing] = []
    for index in sorted(nodes):
        node = graph[index]
        if node.active and index not in known and any(i in known for i in node.inputs):
            layout = _AxisTracer(graph, node, known, steps).compute_layout()
            if len(layout) != len(node.shape):  # not understood: any axis may hold any
                layout = tuple(make_axis(collect_origins(layout), size) for size in node.shape)
            known[index] = layout
    return known, steps


@dataclass(slots=True)
class _AxisTracer:
    """Computes the layout of one node and appends its mixing to `steps`."""

    graph: Graph
    node: Node
    known: dict[int, Layout]
    steps: list[AxisMixing]

    def compute_layout(self) -> Layout:
        node, op = self.node, self.node.op
        if op in PRODUCT or op in ("linear", "cdist"):
            product = self._product_layout()
            if product is not None:
                return product
        source = next(i for i in node.inputs if i in self.known)
        layout, shape = self.known[source], self.graph[source].shape
        if not shape:  # a scalar is broadcast everywhere
            return tuple(make_axis((), size) for size in node.shape)
        if op in ATTENTION:
            self._record_mixing("product", [make_axis({FOREIGN_AXIS}, 2)])
        elif op in RECURRENT - {"gru_cell", "lstm_cell"}:
            self._record_mixing("running", layout[:-1])
        elif op in CUMULATIVE or op in FOURIER:
            kind = "running" if op in CUMULATIVE else "fourier"
            self._record_mixing(kind, [layout[i] for i in self._dims(len(shape))])
        elif op in CONVOLUTION or op in POOLING:
            self._record_kernel(layout, shape)
        elif op in REDUCTIONS and ("dim" in node.detail or node.size == 1):
            return self._reduce_layout(layout, source=source)
        elif op in TRANSPOSES and len(shape) == len(node.shape):
            return tuple(layout[i] for i in self._axis_order(len(shape)))
        elif op == "unfold" and len(node.shape) == len(shape) + 1:
            dim = self._number_operands()[0] % len(shape)
            wide = (*layout, make_axis(collect_origins([layout[dim]]), node.shape[-1]))
            return self._fit_sizes(wide)
        elif op in AXIS_DROPS:
            dim = (self._number_operands() or [0])[0] % len(shape)
            return self._fit_sizes(layout[:dim] + layout[dim + 1 :])
        elif op == "stack":
            dim = int(node.detail.get("dim", 0)) % len(node.shape)
            return self._fit_sizes((*layout[:dim], (), *layout[dim:]))
        elif op == "getitem" and "index" in node.detail:
            indexed = self._index_layout(layout)
            if len(indexed) == len(node.shape):
                return self._fit_sizes(indexed)
        return self._default_layout(layout, shape)

    def _record_mixing(self, kind: str, axes: Iterable[Axis]) -> None:
        origins = collect_origins(axes)
        if origins:
            self.steps.append(AxisMixing(self.node.index, kind, origins))

    def _number_operands(self) -> list[int]:
        return [
            int(o.value) for o in self.node.operands if o.kind == "number" and o.value is not None
        ]

    def _is_active(self, operand: Operand) -> bool:
        return operand.kind == "node" and self.graph[operand.node].active

    def _operand_layout(self, operand: Operand) -> Layout:
        """Return the layout of an operand, whether it depends on the stream or not."""
        if operand.node in self.known:
            return self.known[operand.node]
        origins = {FOREIGN_AXIS} if self._is_active(operand) else set[int]()
        return tuple(make_axis(origins, size) for size in operand_shape(self.graph, operand))

    def _fit_sizes(self, layout: Layout) -> Layout:
        """Return the same axes with the sizes of the result."""
        return tuple(map(resize_axis, layout, self.node.shape))

    # products

    def _product_layout(self) -> Layout | None:
        """Record the axes that a product sums over; return the layout of its result."""
        tensors = tensor_operands(self.node)
        if self.node.op in ("addmm", "baddbmm"):
            tensors = tensors[1:]
        if self.node.op == "linear":
            tensors = tensors[:2]
        shapes = [operand_shape(self.graph, o) for o in tensors]
        einsum = to_einsum(self.node.op, shapes, detail=self.node.detail)
        if einsum is None or len(einsum[1]) != len(self.node.shape):
            return None
        terms, out = einsum
        axes: dict[str, Axis] = {}
        for operand, term in zip(tensors, terms, strict=True):
            for letter, axis in zip(term, self._operand_layout(operand), strict=True):
                axes[letter] = max(axes.get(letter, ()), axis, key=knowledge_rank)
        summed = [letter for letter in dict.fromkeys("".join(terms)) if letter not in out]
        for letter in summed:
            self._record_contraction(letter, tensors, terms=terms)
        # An axis that only the weights have holds what the product sums over.
        new_origins = collect_origins(axes[letter] for letter in summed)
        return tuple(
            axes[letter] if collect_origins([axes[letter]]) else make_axis(new_origins, size)
            for letter, size in zip(out, self.node.shape, strict=True)
        )

    def _record_contraction(
        self, letter: str, tensors: Sequence[Operand], *, terms: list[str]
    ) -> None:
        """Record one summed axis: of two activations, of weights and an activation, or of one."""
        owners = [(o, t.index(letter)) for o, t in zip(tensors, terms, strict=True) if letter in t]
        active = [o for o, _ in owners if self._is_active(o)]
        nodes = (self.graph[o.node] for o, _ in owners if o.kind == "node")
        if len(active) == 1 and any(
            n.depends_on_input and not n.active and not n.learned for n in nodes
        ):
            return  # a one-hot matrix selects tokens, as for an expert
        kind = "product" if len(active) > 1 else "weights" if len(owners) > 1 else "sum"
        self._record_mixing(
            kind, [self.known[o.node][axis] for o, axis in owners if o.node in self.known]
        )

    # sums and kernels

    def _dims(self, rank: int) -> list[int]:
        """Return the axes of a reduction or transform: its argument, or its default."""
        dim = self.node.detail.get("dim")
        if dim is not None:
            return [int(i) % rank for i in (dim if isinstance(dim, list | tuple) else [dim])]
        return list(range(rank))[{"2": -2, "n": -rank}.get(self.node.op[-1], -1) :]

    def _reduce_layout(self, layout: Layout, *, source: int) -> Layout:
        if "dim" not in self.node.detail:
            return ((),) * len(self.node.shape)  # a reduction over all axes
        dims = self._dims(len(layout))
        self._record_mixing(
            "product" if self._is_weighted_sum(source, dims) else "sum", [layout[i] for i in dims]
        )
        if len(self.node.shape) == len(layout):
            return tuple(() if i in dims else axis for i, axis in enumerate(layout))
        return tuple(axis for i, axis in enumerate(layout) if i not in dims)

    def _is_weighted_sum(self, source: int, dims: list[int]) -> bool:
        """Return whether the reduced tensor is a product of pair weights and values.

        This is attention as `(weights[..., None] * values).sum(-2)`: the reduced axes of the stream
        also occur on an axis that remains.
        """
        product = self.graph[self.graph.trace_back(source)[-1][0]]
        active = {o.node for o in product.operands if self._is_active(o)}
        if product.op != "mul" or len(active) < 2:
            return False
        rest = collect_origins(axis for i, axis in enumerate(self.known[source]) if i not in dims)
        return collect_origins(self.known[source][i] for i in dims) <= rest | {FOREIGN_AXIS}

    def _record_kernel(self, layout: Layout, shape: Shape) -> None:
        """Record a convolution or pooling: kernels cover the last axes, channels precede them."""
        if self.node.op in POOLING:
            channels = len(shape) - int(self.node.op[-2]) - 1
            self._record_mixing("channels", [layout[channels]])
            self._record_mixing("sum", layout[channels + 1 :])
            return
        kernel = next(
            (s for o in self.node.operands[1:] if len(s := operand_shape(self.graph, o)) > 2), None
        )
        if kernel is None:
            return
        channels = len(shape) - len(kernel) + 1
        if self.node.op == "conv_tbc":  # (length, in, out) on (tokens, examples, channels)
            self._record_mixing("channels", layout[-1:])
            self._record_mixing("weights", layout[-1:])
            self._record_mixing("kernel", layout[:1] if kernel[0] > 1 else [])
            return
        self._record_mixing("channels", [layout[channels]])
        if kernel[1] > 1:  # not depthwise
            self._record_mixing("weights", [layout[channels]])
        covered = zip(layout[channels + 1 :], kernel[2:], strict=True)
        self._record_mixing("kernel", [axis for axis, size in covered if size > 1])

    # everything else

    def _axis_order(self, rank: int) -> list[int]:
        """Return the axis of the input for each axis of a transposed result."""
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

    def _index_layout(self, layout: Layout) -> Layout:
        """Return the layout after indexing, by the pattern that `relevant_arguments` keeps."""
        pattern = self.node.detail["index"]
        used = sum(int(sign) if sign.isdigit() else sign not in "n." for sign in pattern)
        if "." not in pattern:
            pattern += "."
        pattern = pattern.replace(".", ":" * (len(layout) - used))
        indexed: list[Axis] = []
        position = 0
        for sign in pattern:
            count = int(sign) if sign.isdigit() else sign != "n"
            if sign == "n":
                indexed.append(())
            elif sign != "i":
                taken = layout[position : position + count]
                indexed.append(tuple(factor for axis in taken for factor in axis))
            position += count
        return tuple(indexed)

    def _default_layout(self, layout: Layout, shape: Shape) -> Layout:
        """Return the layout of an elementwise operation, a reshape, or a change of sizes.

        If none of these fits, any axis may hold any.
        """
        out = self.node.shape
        tensors = tensor_operands(self.node)
        if self.node.op in BORROWS_METADATA:  # y.view_as(x) holds nothing of x
            tensors = tensors[:1]
        is_unary = sum(map(self._is_active, tensors)) == 1
        if is_unary and math.prod(shape) == math.prod(out):
            return layout if shape == out else reshape_layout(layout, out)
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
            return self._fit_sizes(layout)
        every = collect_origins(layout)
        sizes = {size: axis for axis, size in zip(layout, shape, strict=True)}
        return tuple(sizes.get(size, make_axis(every, size)) for size in out)

    def _broadcast_layout(self, operand: Operand) -> Layout | None:
        """Return the layout of an operand broadcast to the result; None if it does not fit."""
        out, shape = self.node.shape, operand_shape(self.graph, operand)
        missing = len(out) - len(shape)
        if missing < 0 or any(s not in (1, o) for s, o in zip(shape, out[missing:], strict=True)):
            return None
        return ((),) * missing + self._operand_layout(operand)
