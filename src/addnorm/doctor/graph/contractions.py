"""Products: which axes of an operand they sum over, and which they keep to themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node, Operand, Shape

AXIS_LETTERS = "abcdefghijklmnopqrstuvwxy"
ELLIPSIS_DIGITS = "987654321"
"""Letters of axes that dots stand for."""


@dataclass(frozen=True, slots=True)
class OperandAxes:
    """Axes of one operand of a product, counted from 0."""

    summed: tuple[int, ...]
    free: tuple[int, ...]
    """Those that the other operand does not have and the result does."""


def tensor_operands(node: Node) -> list[Operand]:
    """The tensors of a product, in order."""
    return [o for o in node.operands if o.kind != "number"]


def operand_shape(graph: Graph, operand: Operand) -> Shape:
    """The shape of an operand."""
    return graph[operand.node].shape if operand.kind == "node" else operand.shape


def find_operand_axes(graph: Graph, index: int, *, position: int) -> OperandAxes | None:
    """What a product does with the axes of one of its two tensors; None if that is not known."""
    node = graph[index]
    shapes = [operand_shape(graph, o) for o in tensor_operands(node)]
    if node.op in ("addmm", "baddbmm"):  # the first one is added
        shapes, position = shapes[1:], position - 1
    return contraction_axes(node.op, position, shapes=shapes, detail=node.detail)


def contraction_axes(
    op: str, position: int, *, shapes: Sequence[Shape], detail: dict[str, Any]
) -> OperandAxes | None:
    """The same for a call that is not filed yet."""
    if len(shapes) != 2 or not 0 <= position < 2:
        shapes = shapes[:2] if op == "linear" and position == 0 else ()  # the third is its bias
    spelt = to_einsum(op, shapes, detail=detail)
    if spelt is None:
        return None
    terms, out = spelt
    mine, other = terms[position], terms[1 - position]
    wide = {
        letter for letter, size in zip(other, shapes[1 - position], strict=True) if size > 1
    }  # an axis of one is not there
    sizes = zip(mine, shapes[position], strict=True)
    return OperandAxes(
        tuple(i for i, letter in enumerate(mine) if letter not in out),
        tuple(
            i
            for i, (letter, size) in enumerate(sizes)
            if letter in out and letter not in (wide if size > 1 else other)
        ),
    )


def to_einsum(
    op: str, shapes: Sequence[Shape], *, detail: dict[str, Any]
) -> tuple[list[str], str] | None:
    """A product as an einsum: a letter for each axis of each tensor, and those of the result.

    >>> letters("matmul", [(2, 3, 4), (4, 5)], detail={})
    (['cab', 'bz'], 'caz')
    """
    if op == "einsum" and shapes:
        return _parse_einsum(shapes, equation=str(detail.get("equation", "")))
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return None
    one, other = (len(shape) for shape in shapes[:2])
    if op == "linear":
        rows = AXIS_LETTERS[: one - 1]
        return [f"{rows}z", "yz"[2 - other :]], f"{rows}y"[: one - 2 + other]
    if op in ("matmul", "bmm", "mm", "addmm", "baddbmm", "mv", "dot"):
        ahead = AXIS_LETTERS[2 : max(one, other)][::-1]  # the same from the end
        left = (ahead[len(ahead) - one + 2 :] + "a" if one > 1 else "") + "b"
        right = ahead[len(ahead) - other + 2 :] + "bz" if other > 1 else "b"
        return [left, right], ahead + "a" * (one > 1) + "z" * (other > 1)
    if op == "cdist":
        ahead = AXIS_LETTERS[2 : max(one, other)][::-1]
        parts = [ahead[len(ahead) - rank + 2 :] for rank in (one, other)]
        return [f"{parts[0]}ab", f"{parts[1]}zb"], f"{ahead}az"
    if op == "tensordot":
        return _tensordot_to_einsum(one, other, dims=detail.get("dims", 2))
    return None


def _tensordot_to_einsum(
    left_rank: int, right_rank: int, *, dims: Any
) -> tuple[list[str], str] | None:
    if isinstance(dims, int):
        pairs = [(left_rank - dims + i, i) for i in range(dims)]
    elif isinstance(dims, list | tuple) and len(dims) == 2:
        sides = [[side] if isinstance(side, int) else list(side) for side in dims]
        pairs = [(i % left_rank, j % right_rank) for i, j in zip(*sides, strict=True)]
    else:
        return None
    left, right = (
        list(AXIS_LETTERS[:left_rank]),
        list(AXIS_LETTERS[left_rank : left_rank + right_rank]),
    )
    for i, j in pairs:
        right[j] = left[i]
    shared = {left[i] for i, _ in pairs}
    out = "".join(letter for letter in left + right if letter not in shared)
    return ["".join(left), "".join(right)], out


def _parse_einsum(shapes: Sequence[Shape], *, equation: str) -> tuple[list[str], str] | None:
    inside, arrow, outside = equation.replace(" ", "").partition("->")
    terms = inside.split(",")
    if len(terms) != len(shapes):
        return None
    spelt = []
    for term, shape in zip(terms, shapes, strict=True):
        hidden = len(shape) - len(term.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in term):
            return None
        # what dots stand for has digits as letters, counted from the end
        spelt.append(term.replace("...", ELLIPSIS_DIGITS[len(ELLIPSIS_DIGITS) - hidden :]))
    dots = "".join(digit for digit in ELLIPSIS_DIGITS if any(digit in term for term in spelt))
    if not arrow:
        every = "".join(spelt)
        alone = sorted(c for c in set(every) if every.count(c) == 1 and c.isalpha())
        outside = "..." + "".join(alone)
    return spelt, outside.replace("...", dots)
