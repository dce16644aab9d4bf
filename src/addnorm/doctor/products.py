"""Products: which axes of an operand they sum over, and which they keep to themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from addnorm.doctor.graph import Graph
from addnorm.doctor.nodes import Node, Operand, Shape


@dataclass(frozen=True, slots=True)
class Axes:
    """Axes of one operand of a product, counted from 0."""

    summed: tuple[int, ...]
    own: tuple[int, ...]
    """Those that the other operand does not have and the result does."""


def factors(node: Node) -> list[Operand]:
    """The tensors of a product, in order."""
    return [o for o in node.operands if o.kind != "number"]


def shape_of(graph: Graph, operand: Operand) -> Shape:
    """The shape of an operand."""
    return graph[operand.node].shape if operand.kind == "node" else operand.shape


def axes(graph: Graph, index: int, *, place: int) -> Axes | None:
    """What a product does with the axes of one of its two tensors; None if that is not known."""
    node = graph[index]
    shapes = [shape_of(graph, o) for o in factors(node)]
    if node.op in ("addmm", "baddbmm"):  # the first one is added
        shapes, place = shapes[1:], place - 1
    return axes_of(node.op, place, shapes=shapes, detail=node.detail)


def axes_of(op: str, place: int, *, shapes: Sequence[Shape], detail: dict[str, Any]) -> Axes | None:
    """The same for a call that is not filed yet."""
    if len(shapes) < 2 or not 0 <= place < 2:
        return None
    mine, other = shapes[place], shapes[1 - place]
    if op == "linear":
        return Axes((len(mine) - 1,), tuple(range(len(mine) - 1))) if place == 0 else None
    if op in ("matmul", "bmm", "mm", "addmm", "baddbmm"):
        return _matmul(place, mine, other=other)
    if op == "tensordot":
        return _tensordot(place, shapes, dims=detail.get("dims", 2))
    if op == "einsum" and len(shapes) == 2:
        return _einsum(place, shapes, equation=str(detail.get("equation", "")))
    return None


def _matmul(place: int, mine: Shape, *, other: Shape) -> Axes | None:
    if not mine or not other:
        return None
    rank = len(mine)
    summed = rank - 1 if place == 0 or rank == 1 else rank - 2
    own = [2 * rank - 3 - summed] if rank > 1 else []
    for axis in range(rank - 2):
        theirs = axis - rank + len(other)
        if theirs < 0 or (other[theirs] == 1 != mine[axis]):
            own.append(axis)
    return Axes((summed,), tuple(sorted(own)))


def _tensordot(place: int, shapes: Sequence[Shape], *, dims: Any) -> Axes | None:
    rank = len(shapes[place])
    if isinstance(dims, int):
        summed = list(range(dims) if place else range(rank - dims, rank))
    elif isinstance(dims, list | tuple) and len(dims) == 2:
        said = dims[place]
        summed = [said] if isinstance(said, int) else list(said)
    else:
        return None
    gone = tuple(sorted(axis % rank for axis in summed))
    return Axes(gone, tuple(axis for axis in range(rank) if axis not in gone))


def _einsum(place: int, shapes: Sequence[Shape], *, equation: str) -> Axes | None:
    inside, arrow, outside = equation.replace(" ", "").partition("->")
    terms = inside.split(",")
    if not arrow or len(terms) != 2:
        return None
    spelt = []
    for term, shape in zip(terms, shapes, strict=True):
        hidden = len(shape) - len(term.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in term):
            return None
        # what dots stand for has digits as letters, counted from the end
        dots = "".join(chr(ord("0") + i) for i in range(hidden, 0, -1))
        spelt.append(term.replace("...", dots))
    kept = outside.replace("...", "")
    dotted = "..." in outside
    mine, other = spelt[place], spelt[1 - place]
    stays = [letter in kept or (letter.isdigit() and dotted) for letter in mine]
    return Axes(
        tuple(i for i, stay in enumerate(stays) if not stay),
        tuple(i for i, stay in enumerate(stays) if stay and mine[i] not in other),
    )
