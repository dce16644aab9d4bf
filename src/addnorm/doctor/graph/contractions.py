"""Contractions: which axes a product of two tensors sums over, and which it keeps.

Every product is written as an einsum, with one letter per axis:

    matmul, (2, 3, 4) @ (4, 5)      to_einsum -> ["cab", "bz"], "caz"
    axes of the first operand       OperandAxes(summed=(2,), free=(0, 1))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node, Operand, Shape
from addnorm.doctor.graph.ops import PRODUCT

AXIS_LETTERS = "abcdefghijklmnopqrstuvwxy"
ELLIPSIS_DIGITS = "987654321"
"""Letters for the axes that an ellipsis stands for."""


@dataclass(frozen=True, slots=True)
class OperandAxes:
    """Axes of one operand of a product, counted from the front."""

    summed: tuple[int, ...]
    free: tuple[int, ...]
    """Axes of the result that the other operand does not have."""


def tensor_operands(node: Node) -> list[Operand]:
    """Return the operands of a product that are tensors, in order."""
    return [o for o in node.operands if o.kind != "number"]


def is_activation_product(graph: Graph, node: Node) -> bool:
    """Return whether a node multiplies two activations.

    Parts of one chunked tensor are the same node, so operands are counted instead of inputs.
    """
    operands = [o for o in tensor_operands(node) if o.kind == "node" and graph[o.node].active]
    return node.op in PRODUCT and len(operands) == 2


def operand_shape(graph: Graph, operand: Operand) -> Shape:
    """Return the shape of an operand: that of its node, or the stored one of a parameter."""
    return graph[operand.node].shape if operand.kind == "node" else operand.shape


def find_operand_axes(graph: Graph, index: int, *, position: int) -> OperandAxes | None:
    """Return the axes of one operand of a product node; None if they are not known."""
    node = graph[index]
    shapes = [operand_shape(graph, o) for o in tensor_operands(node)]
    if node.op in ("addmm", "baddbmm"):  # the first operand is added, not multiplied
        shapes, position = shapes[1:], position - 1
    return contraction_axes(node.op, position, shapes=shapes, detail=node.detail)


def contraction_axes(
    op: str, position: int, *, shapes: Sequence[Shape], detail: dict[str, Any]
) -> OperandAxes | None:
    """Return the axes of one operand of a product.

    Args:
        op: canonical name of the product
        position: which of the two factors
        shapes: shapes of the factors
        detail: plain arguments of the call, such as the equation of an einsum

    Returns:
        The axes; None if the operation is not a known product.
    """
    if len(shapes) != 2 or not 0 <= position < 2:
        shapes = shapes[:2] if op == "linear" and position == 0 else ()  # drop the bias
    einsum = to_einsum(op, shapes, detail=detail)
    if einsum is None:
        return None
    terms, out = einsum
    term, other = terms[position], terms[1 - position]
    # An axis of size 1 is broadcast: the other operand does not really have it.
    wide = {letter for letter, size in zip(other, shapes[1 - position], strict=True) if size > 1}
    sizes = zip(term, shapes[position], strict=True)
    return OperandAxes(
        tuple(i for i, letter in enumerate(term) if letter not in out),
        tuple(
            i
            for i, (letter, size) in enumerate(sizes)
            if letter in out and letter not in (wide if size > 1 else other)
        ),
    )


def to_einsum(
    op: str, shapes: Sequence[Shape], *, detail: dict[str, Any]
) -> tuple[list[str], str] | None:
    """Return a product as an einsum: the letters of each operand, and those of the result.

    >>> to_einsum("matmul", [(2, 3, 4), (4, 5)], detail={})
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
        batch = AXIS_LETTERS[2 : max(one, other)][::-1]  # batch axes are aligned at the end
        left = (batch[len(batch) - one + 2 :] + "a" if one > 1 else "") + "b"
        right = batch[len(batch) - other + 2 :] + "bz" if other > 1 else "b"
        return [left, right], batch + "a" * (one > 1) + "z" * (other > 1)
    if op == "cdist":
        batch = AXIS_LETTERS[2 : max(one, other)][::-1]
        parts = [batch[len(batch) - rank + 2 :] for rank in (one, other)]
        return [f"{parts[0]}ab", f"{parts[1]}zb"], f"{batch}az"
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
    expanded = []
    for term, shape in zip(terms, shapes, strict=True):
        hidden = len(shape) - len(term.replace("...", ""))
        if hidden < 0 or (hidden and "..." not in term):
            return None
        # Axes of an ellipsis get digits, counted from the end, so that operands align.
        expanded.append(term.replace("...", ELLIPSIS_DIGITS[len(ELLIPSIS_DIGITS) - hidden :]))
    digits = "".join(digit for digit in ELLIPSIS_DIGITS if any(digit in term for term in expanded))
    if not arrow:  # implicit output: the letters that occur once, in alphabetical order
        letters = "".join(expanded)
        unique = sorted(c for c in set(letters) if letters.count(c) == 1 and c.isalpha())
        outside = "..." + "".join(unique)
    return expanded, outside.replace("...", digits)
