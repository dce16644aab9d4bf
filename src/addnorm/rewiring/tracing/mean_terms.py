"""Terms of a stream: the weights whose means add up to the mean of a norm's input.

A walk goes back from the input of a LayerNorm over operations that are linear in the feature axis.
It ends at weights that write to the stream (`Writer`: a matrix, its bias, a table), at other norms,
and at operations that it does not know, which it reports with their place.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from addnorm.rewiring.tracing.recorder import NORM, Op, Value, number_of


@dataclass(frozen=True)
class Axis:
    """The feature axis of a value: groups of `size` neighbors, each with a mean of its own."""

    index: int
    size: int


@dataclass(frozen=True)
class Writer:
    """A weight that writes to a stream."""

    name: str
    axis: Axis
    scales: tuple[str, ...] = ()
    """Gains per feature between the weight and the stream, as in LayerScale."""


@dataclass
class StreamTerms:
    """Terms of the input of one norm."""

    writers: set[Writer] = field(default_factory=set)
    norms: set[str] = field(default_factory=set)
    """Paths of norms whose output is a term."""
    problems: list[str] = field(default_factory=list)
    """Operations that the walk does not pass, with their places."""


VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias", "unflatten", "flatten"}
SAME = {
    *("clone", "alias", "detach", "_to_copy", "contiguous", "lift_fresh", "copy", "to"),
    *("neg", "native_dropout", "dropout"),
}
"""Operations whose first operand keeps its axes."""
ZEROS = {"zeros", "zeros_like", "new_zeros"}
METADATA = {
    *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "new_zeros"),
    *("new_ones", "new_empty", "new_full", "sym_size", "new_empty_strided"),
}
"""Operations that read shapes only."""


class TermWalk:
    """Walks back from values to terms; remembers every operand that it passed.

    Args:
        gains: (path of a norm) of all norm modules
    """

    def __init__(self) -> None:
        self.edges: set[tuple[int, int]] = set()
        """(operation, operand) that are part of a stream."""
        self.values: dict[int, tuple[Value, set[Writer]]] = {}
        """Values of streams, and the writers that contribute to each."""

    def find_terms(self, value: Value, size: int) -> StreamTerms:
        """Return the terms of the input of a norm over its last axis."""
        terms = StreamTerms()
        self._walk(value, Axis(len(value.shape) - 1, size), (), terms, {})
        return terms

    def _walk(
        self,
        value: Value,
        axis: Axis,
        scales: tuple[str, ...],
        terms: StreamTerms,
        done: dict[tuple[int, Axis, tuple[str, ...]], set[Writer]],
    ) -> set[Writer]:
        key = (id(value), axis, scales)
        if key in done:
            return done[key]
        found: set[Writer] = set()
        done[key] = found
        if value.weight is not None:
            found.add(Writer(value.weight, axis, scales))
        elif value.op is None:
            terms.problems.append(f"an input or constant of shape {list(value.shape)}")
        else:
            op = value.op
            steps = list(_steps(op, value, axis, terms))
            for operand, operand_axis, gain in steps:
                self.edges.add((id(op), id(operand)))
                below = scales if gain is None else (*scales, gain)
                found |= self._walk(operand, operand_axis, below, terms, done)
                if gain is not None:
                    gain_value = next(v for v in op.inputs if _weight_name(v) == gain)
                    self.edges.add((id(op), id(gain_value)))
        terms.writers |= found
        _, writers = self.values.setdefault(id(value), (value, set()))
        writers |= found
        return found


def _steps(
    op: Op, value: Value, axis: Axis, terms: StreamTerms
) -> Iterator[tuple[Value, Axis, str | None]]:
    """Yield (operand, its feature axis, gain between them) of an operation that is linear."""
    index, size = axis.index, axis.size
    rank = len(value.shape)
    args = op.args
    first = args[0] if args else None
    if op.name == NORM:
        terms.norms.add(op.path)
    elif op.name in ZEROS or (op.name in ("full", "full_like") and number_of(args[1]) == 0):
        return
    elif op.name in SAME and isinstance(first, Value):
        yield (args[1] if op.name == "copy" else first), axis, None
    elif op.name in ("add", "sub"):
        yield from _sum_steps(op, axis, rank, terms)
    elif op.name in ("mul", "div"):
        yield from _product_steps(op, axis, rank, terms)
    elif op.name == "addmm" and index == 1 and _is_plain(op):
        yield _broadcast(args[0], axis, rank)
        yield args[2], axis, None
    elif op.name == "mm":
        yield args[index], axis, None
    elif op.name == "bmm" and index in (1, 2):
        yield args[index - 1], axis, None
    elif op.name == "baddbmm" and index == 2 and _is_plain(op):
        yield _broadcast(args[0], axis, rank)
        yield args[2], axis, None
    elif op.name == "embedding" and index == rank - 1:
        yield args[0], Axis(1, size), None
    elif op.name == "convolution" and index == 1 and not args[6]:
        yield args[1], Axis(0, size), None
        if args[2] is not None:
            yield args[2], Axis(0, size), None
    elif op.name in VIEWS and isinstance(first, Value):
        inner = _map_view(first.shape, value.shape, axis)
        if inner is None:
            terms.problems.append(_describe(op, "merges features"))
        else:
            yield first, inner, None
    else:
        step = _layout_step(op, value, axis)
        if step is None:
            terms.problems.append(_describe(op))
        else:
            for operand, operand_axis in step:
                yield operand, operand_axis, None


def _is_plain(op: Op) -> bool:
    return op.kwargs.get("beta", 1) == 1 and op.kwargs.get("alpha", 1) == 1


def _broadcast(operand: Value, axis: Axis, rank: int) -> tuple[Value, Axis, str | None]:
    """Return an operand of a broadcast operation, with its own feature axis."""
    return operand, Axis(axis.index - (rank - len(operand.shape)), axis.size), None


def _spans(operand: Value, axis: Axis, rank: int) -> bool:
    """Return whether an operand has more than one entry along the feature axis."""
    own = axis.index - (rank - len(operand.shape))
    return own >= 0 and operand.shape[own] > 1


def _sum_steps(
    op: Op, axis: Axis, rank: int, terms: StreamTerms
) -> Iterator[tuple[Value, Axis, str | None]]:
    for argument in op.args[:2]:
        number = number_of(argument)
        if number == 0:
            continue
        if isinstance(argument, Value) and _spans(argument, axis, rank):
            yield _broadcast(argument, axis, rank)
        else:
            terms.problems.append(_describe(op, "adds the same number to all features"))


def _product_steps(
    op: Op, axis: Axis, rank: int, terms: StreamTerms
) -> Iterator[tuple[Value, Axis, str | None]]:
    one, other = op.args[:2]
    if not isinstance(one, Value):
        one, other = other, one
    wide = [x for x in (one, other) if isinstance(x, Value) and _spans(x, axis, rank)]
    if len(wide) == 1 and (wide[0] is op.args[0] or op.name == "mul"):
        yield _broadcast(wide[0], axis, rank)
        return
    constant = [x for x in wide if _is_constant(x, axis, rank)]
    if len(wide) == 2 and len(constant) == 1 and (op.name == "mul" or constant[0] is wide[1]):
        yield _broadcast(wide[0] if wide[1] is constant[0] else wide[1], axis, rank)
        return
    gains = [x for x in wide if _weight_name(x) is not None and _is_vector(x)]
    if op.name == "mul" and len(wide) == 2 and len(gains) == 1:
        stream = wide[0] if wide[1] is gains[0] else wide[1]
        operand, operand_axis, _ = _broadcast(stream, axis, rank)
        yield operand, operand_axis, _weight_name(gains[0])
        return
    terms.problems.append(_describe(op, "scales features by activations"))


def _weight_name(value: Value) -> str | None:
    """Return the parameter behind a value, also behind added axes."""
    while value.weight is None and value.op is not None and value.op.name in (*VIEWS, "unsqueeze"):
        value = value.op.args[0]
    return value.weight


def _is_constant(value: Value, axis: Axis, rank: int) -> bool:
    """Return whether a value of weights alone has equal entries along the feature axis."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each.weight is None and (each.op is None or not each.op.inputs):
            return False
        waiting += [] if each.weight is not None or each.op is None else each.op.inputs
    own = axis.index - (rank - len(value.shape))
    first = value.tensor.narrow(own, 0, 1)
    return bool((value.tensor == first).all())


def _is_vector(value: Value) -> bool:
    return math.prod(value.shape) == max(value.shape)


def _map_view(before: tuple[int, ...], after: tuple[int, ...], axis: Axis) -> Axis | None:
    """Return the feature axis before a view; its groups must stay neighbors."""
    inner = math.prod(after[axis.index + 1 :])
    for index in range(len(before) - 1, -1, -1):
        if math.prod(before[index + 1 :]) == inner and before[index] > 1:
            fits = before[index] % axis.size == 0 and after[axis.index] % axis.size == 0
            return Axis(index, axis.size) if fits else None
    return None


def _layout_step(op: Op, value: Value, axis: Axis) -> list[tuple[Value, Axis]] | None:
    """Return operands of an operation on other axes; None if it is not one."""
    index, size, args = axis.index, axis.size, op.args
    first, rank = (args[0] if args else None), len(value.shape)

    def at(position: int) -> Axis:
        return Axis(position, size)

    def normal(dim: int, count: int) -> int:
        return dim % count

    if op.name in ("cat", "stack"):
        dim = args[1] if len(args) > 1 else op.kwargs.get("dim", 0)
        dim = normal(dim, rank)
        if dim == index:
            return None
        shift = int(op.name == "stack" and index > dim)
        return [(each, at(index - shift)) for each in args[0] if each.shape != (0,)]
    if not isinstance(first, Value):
        return None
    count = len(first.shape)
    if op.name in ("transpose", "t"):
        one, two = (normal(a, count) for a in args[1:3]) if op.name == "transpose" else (0, 1)
        return [(first, at(two if index == one else one if index == two else index))]
    if op.name == "permute":
        return [(first, at(normal(args[1][index], count)))]
    if op.name == "expand":
        own = index - (rank - count)
        return [(first, at(own))] if own >= 0 and first.shape[own] == value.shape[index] else None
    if op.name == "unsqueeze":
        dim = normal(args[1], rank)
        return None if dim == index else [(first, at(index - int(index > dim)))]
    if op.name == "squeeze":
        kept = [d for d in range(count) if not _is_squeezed(op, first, d)]
        return [(first, at(kept[index]))]
    if op.name == "select":
        dim = normal(args[1], count)
        return [(first, at(index + int(index >= dim)))]
    if op.name in ("slice", "narrow", "index_select", "roll", "split", "split_with_sizes"):
        return _other_axis(op, first, index, at)
    if op.name == "unbind":
        dim = normal(args[1] if len(args) > 1 else 0, count)
        return [(first, at(index + int(index >= dim)))]
    if op.name == "index":
        return _indexed(op, first, index, at)
    if op.name in ("sum", "mean") and len(args) > 1 and args[1]:
        dims = {normal(d, count) for d in args[1]}
        keeps = bool(args[2]) if len(args) > 2 else bool(op.kwargs.get("keepdim", False))
        left = list(range(count)) if keeps else [d for d in range(count) if d not in dims]
        return None if left[index] in dims else [(first, at(left[index]))]
    if op.name == "masked_fill" and number_of(args[2]) == 0:
        return [(first, axis)] if not _spans(args[1], axis, rank) else None
    if op.name == "where" and not _spans(first, axis, rank):
        return [_broadcast(each, axis, rank)[:2] for each in args[1:3]]
    if op.name == "constant_pad_nd" and (len(args) < 3 or number_of(args[2]) == 0):
        padded = range(rank - len(args[1]) // 2, rank)
        return (
            None
            if index in padded and first.shape[index] != value.shape[index]
            else [(first, axis)]
        )
    return None


def _is_squeezed(op: Op, first: Value, dim: int) -> bool:
    dims = op.args[1] if len(op.args) > 1 else range(len(first.shape))
    dims = [dims] if isinstance(dims, int) else dims
    return first.shape[dim] == 1 and dim in [d % len(first.shape) for d in dims]


def _other_axis(op: Op, first: Value, index: int, at: object) -> list[tuple[Value, Axis]] | None:
    assert callable(at)
    place = 2 if op.name in ("roll", "split", "split_with_sizes") else 1
    default = 0
    dims = op.args[place] if len(op.args) > place else op.kwargs.get("dim", default)
    dims = [dims] if isinstance(dims, int) else dims
    touched = {d % len(first.shape) for d in dims}
    whole = op.outputs and all(out.shape == first.shape for out in op.outputs)
    if index in touched and not (whole and op.name == "slice"):
        return None
    return [(first, at(index))]


def _indexed(op: Op, first: Value, index: int, at: object) -> list[tuple[Value, Axis]] | None:
    """Return the step of x[i, j, ...] with indices on leading axes only."""
    assert callable(at)
    indices = op.args[1]
    used = [i for i, each in enumerate(indices) if each is not None]
    if not used or used != list(range(len(used))):
        return None
    is_mask = any(str(indices[i].tensor.dtype) == "torch.bool" for i in used)
    axes = sum(len(indices[i].shape) for i in used) if is_mask else len(used)
    broadcast = 1 if is_mask else max(len(indices[i].shape) for i in used)
    own = index - broadcast + axes
    return [(first, at(own))] if index >= broadcast and own < len(first.shape) else None


def _describe(op: Op, what: str = "") -> str:
    where = f" in {op.path}" if op.path else ""
    return f"{op.name}{where}" + (f", which {what}" if what else "")
