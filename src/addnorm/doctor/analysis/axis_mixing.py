"""Steps: where the axes of a stream are mixed, each operation followed by its layouts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from addnorm.doctor.graph.axis_layout import (
    FOREIGN,
    Axis,
    Layout,
    axis_of,
    fresh,
    origins,
    regrouped,
    sized,
    told,
)
from addnorm.doctor.graph.contractions import factors, letters, shape_of
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node, Operand, Shape
from addnorm.doctor.graph.ops import (
    ATTENTION,
    CONVOLUTION,
    FOURIER,
    POOLING,
    PRODUCT,
    RECURRENT,
    REDUCTIONS,
    RUNNING,
    TURNS,
)

DROPS = frozenset({"select", "unbind"})


@dataclass(frozen=True, slots=True)
class Step:
    """An operation that mixes along axes of the stream."""

    node: int
    how: str
    """product (of two activations), weights, kernel, sum, running, fourier; or channels, which
    says only that a kernel takes these axes for its features."""
    origins: frozenset[int]


def follow(
    graph: Graph, nodes: Iterable[int], *, starts: Iterable[int]
) -> tuple[dict[int, Layout], list[Step]]:
    """The layout of every node that is made of these, and the steps that mix their axes."""
    known = {start: fresh(graph[start].shape) for start in starts}
    steps: list[Step] = []
    for index in sorted(nodes):
        node = graph[index]
        if node.active and index not in known and any(i in known for i in node.ins):
            found = _Following(graph, node, known, steps).layout()
            if len(found) != len(node.shape):  # not what was expected: any axis may hold any
                found = tuple(axis_of(origins(found), size) for size in node.shape)
            known[index] = found
    return known, steps


@dataclass(slots=True)
class _Following:
    """One operation, and what is known before it."""

    graph: Graph
    node: Node
    known: dict[int, Layout]
    steps: list[Step]

    def layout(self) -> Layout:
        node, op = self.node, self.node.op
        if op in PRODUCT or op in ("linear", "cdist"):
            found = self._product()
            if found is not None:
                return found
        source = next(i for i in node.ins if i in self.known)
        mine, shape = self.known[source], self.graph[source].shape
        if not shape:  # one number, which goes everywhere
            return tuple(axis_of((), size) for size in node.shape)
        if op in ATTENTION:
            self._mixed("product", [axis_of({FOREIGN}, 2)])
        elif op in RECURRENT - {"gru_cell", "lstm_cell"}:
            self._mixed("running", mine[:-1])
        elif op in RUNNING or op in FOURIER:
            how = "running" if op in RUNNING else "fourier"
            self._mixed(how, [mine[i] for i in self._dims(len(shape))])
        elif op in CONVOLUTION or op in POOLING:
            self._kernel(mine, shape)
        elif op in REDUCTIONS and ("dim" in node.detail or node.size == 1):
            return self._reduced(mine, source=source)
        elif op in TURNS and len(shape) == len(node.shape):
            return tuple(mine[i] for i in self._order(len(shape)))
        elif op == "unfold" and len(node.shape) == len(shape) + 1:
            dim = self._numbers()[0] % len(shape)
            wide = (*mine, axis_of(origins([mine[dim]]), node.shape[-1]))
            return self._fitted(wide)
        elif op in DROPS:
            dim = (self._numbers() or [0])[0] % len(shape)
            return self._fitted(mine[:dim] + mine[dim + 1 :])
        elif op == "stack":
            dim = int(node.detail.get("dim", 0)) % len(node.shape)
            return self._fitted((*mine[:dim], (), *mine[dim:]))
        elif op == "getitem" and "index" in node.detail:
            found = self._indexed(mine)
            if len(found) == len(node.shape):
                return self._fitted(found)
        return self._elsewhere(mine, shape)

    def _mixed(self, how: str, axes: Iterable[Axis]) -> None:
        held = origins(axes)
        if held:
            self.steps.append(Step(self.node.index, how, held))

    def _numbers(self) -> list[int]:
        return [
            int(o.value) for o in self.node.operands if o.kind == "number" and o.value is not None
        ]

    def _live(self, operand: Operand) -> bool:
        return operand.kind == "node" and self.graph[operand.node].active

    def _of(self, operand: Operand) -> Layout:
        """The layout of an operand, made of the stream or not."""
        if operand.node in self.known:
            return self.known[operand.node]
        held = {FOREIGN} if self._live(operand) else set[int]()
        return tuple(axis_of(held, size) for size in shape_of(self.graph, operand))

    def _fitted(self, layout: Layout) -> Layout:
        """The same axes with the sizes of the result."""
        return tuple(map(sized, layout, self.node.shape))

    # products

    def _product(self) -> Layout | None:
        """A product as an einsum: what is summed over, and where the rest goes."""
        tensors = factors(self.node)
        if self.node.op in ("addmm", "baddbmm"):
            tensors = tensors[1:]
        if self.node.op == "linear":
            tensors = tensors[:2]
        shapes = [shape_of(self.graph, o) for o in tensors]
        spelt = letters(self.node.op, shapes, detail=self.node.detail)
        if spelt is None or len(spelt[1]) != len(self.node.shape):
            return None
        terms, out = spelt
        found: dict[str, Axis] = {}
        for operand, term in zip(tensors, terms, strict=True):
            for letter, axis in zip(term, self._of(operand), strict=True):
                found[letter] = max(found.get(letter, ()), axis, key=told)
        summed = [letter for letter in dict.fromkeys("".join(terms)) if letter not in out]
        for letter in summed:
            self._summed(letter, tensors, terms=terms)
        made = origins(found[letter] for letter in summed)
        return tuple(
            found[letter] if origins([found[letter]]) else axis_of(made, size)
            for letter, size in zip(out, self.node.shape, strict=True)
        )

    def _summed(self, letter: str, tensors: Sequence[Operand], *, terms: list[str]) -> None:
        """An axis is gone: by a product of two activations, of weights and one, or by a sum."""
        have = [(o, t.index(letter)) for o, t in zip(tensors, terms, strict=True) if letter in t]
        live = [o for o, _ in have if self._live(o)]
        chosen = (self.graph[o.node] for o, _ in have if o.kind == "node")
        if len(live) == 1 and any(n.data and not n.active and not n.learned for n in chosen):
            return  # tokens are picked, as for an expert
        how = "product" if len(live) > 1 else "weights" if len(have) > 1 else "sum"
        self._mixed(how, [self.known[o.node][place] for o, place in have if o.node in self.known])

    # sums and kernels

    def _dims(self, rank: int) -> list[int]:
        """The axes that an operation was told, or takes by itself."""
        said = self.node.detail.get("dim")
        if said is not None:
            return [int(i) % rank for i in (said if isinstance(said, list | tuple) else [said])]
        return list(range(rank))[{"2": -2, "n": -rank}.get(self.node.op[-1], -1) :]

    def _reduced(self, mine: Layout, *, source: int) -> Layout:
        if "dim" not in self.node.detail:
            return ((),) * len(self.node.shape)  # one number for all
        dims = self._dims(len(mine))
        self._mixed("product" if self._weighed(source, dims) else "sum", [mine[i] for i in dims])
        if len(self.node.shape) == len(mine):
            return tuple(() if i in dims else axis for i, axis in enumerate(mine))
        return tuple(axis for i, axis in enumerate(mine) if i not in dims)

    def _weighed(self, source: int, dims: list[int]) -> bool:
        """Whether weights of pairs and values were multiplied: each entry of an axis has its own
        sum over the same axis."""
        made = self.graph[self.graph.chain(source)[-1][0]]
        live = {o.node for o in made.operands if self._live(o)}
        if made.op != "mul" or len(live) < 2:
            return False
        rest = origins(axis for i, axis in enumerate(self.known[source]) if i not in dims)
        return origins(self.known[source][i] for i in dims) <= rest | {FOREIGN}

    def _kernel(self, mine: Layout, shape: Shape) -> None:
        """Kernels stand on the last axes; channels before them."""
        if self.node.op in POOLING:
            place = len(shape) - int(self.node.op[-2]) - 1
            self._mixed("channels", [mine[place]])
            self._mixed("sum", mine[place + 1 :])
            return
        kernel = next(
            (s for o in self.node.operands[1:] if len(s := shape_of(self.graph, o)) > 2), None
        )
        if kernel is None:
            return
        place = len(shape) - len(kernel) + 1
        if self.node.op == "conv_tbc":  # (length, in, out) on (tokens, examples, channels)
            self._mixed("channels", mine[-1:])
            self._mixed("weights", mine[-1:])
            self._mixed("kernel", mine[:1] if kernel[0] > 1 else [])
            return
        self._mixed("channels", [mine[place]])
        if kernel[1] > 1:
            self._mixed("weights", [mine[place]])
        on = zip(mine[place + 1 :], kernel[2:], strict=True)
        self._mixed("kernel", [axis for axis, size in on if size > 1])

    # everything else

    def _order(self, rank: int) -> list[int]:
        numbers = [i % rank for i in self._numbers()] if rank else []
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

    def _indexed(self, mine: Layout) -> Layout:
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

    def _elsewhere(self, mine: Layout, shape: Shape) -> Layout:
        """What most operations do: each entry by itself, or the same entries in another shape, or
        more or fewer along an axis; where nothing is known, any axis may hold any."""
        out = self.node.shape
        tensors = factors(self.node)
        alone = sum(map(self._live, tensors)) == 1
        if alone and math.prod(shape) == math.prod(out):
            return mine if shape == out else regrouped(mine, out)
        if len(out) >= max(len(shape_of(self.graph, o)) for o in tensors if self._live(o)):
            wide = [self._broadcast(o) for o in tensors if self._live(o)]
            if all(layout is not None for layout in wide):
                columns = zip(*(layout for layout in wide if layout is not None), strict=True)
                return tuple(
                    max(column, key=told) or axis_of((), size)
                    for column, size in zip(columns, out, strict=True)
                )
        if len(shape) == len(out):
            return self._fitted(mine)
        every = origins(mine)
        sizes = {size: axis for axis, size in zip(mine, shape, strict=True)}
        return tuple(sizes.get(size, axis_of(every, size)) for size in out)

    def _broadcast(self, operand: Operand) -> Layout | None:
        """An operand's layout spread to the shape of the result; None if it does not fit."""
        out, shape = self.node.shape, shape_of(self.graph, operand)
        ahead = len(out) - len(shape)
        if ahead < 0 or any(s not in (1, o) for s, o in zip(shape, out[ahead:], strict=True)):
            return None
        return ((),) * ahead + self._of(operand)
