"""A typical layer of each stream, node by node as it was recorded: what a picture is drawn from."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from addnorm.doctor.analysis.norms import TITLES
from addnorm.doctor.analysis.results import Anatomy, Reading
from addnorm.doctor.graph.nodes import Scale

MOST = 8
"""Adds that are drawn where nothing repeats."""


@dataclass(frozen=True)
class Piece:
    """One thing in a typical layer."""

    kind: str
    """input, output, norm, sublayer, add, scale or mix, which is anything else."""
    label: str
    inputs: tuple[int, ...] = ()
    """Places of the pieces it reads."""
    layer: int = 0
    """0 in the layer; -1 before it, -2 behind the last one."""
    learned: bool = False


@dataclass(frozen=True)
class Sketch:
    """A typical layer of one stream."""

    stream: int
    repeats: int
    """How many layers in a row it stands for."""
    pieces: tuple[Piece, ...]


def sketches(anatomy: Anatomy) -> tuple[Sketch, ...]:
    """One for each stream."""
    streams: dict[int, list[Reading]] = {}
    for reading in anatomy.blocks():
        streams.setdefault(reading.stream, []).append(reading)
    return tuple(_sketch(anatomy, stream, rows=rows) for stream, rows in streams.items())


def period(kinds: list[Any]) -> int:
    """After how many a list repeats, from the first to the last.

    >>> period(["a", "b", "a", "b"])
    2
    """
    return next(
        p for p in range(1, len(kinds) + 1)
        if len(kinds) % p == 0 and kinds == kinds[:p] * (len(kinds) // p)
    )  # fmt: skip


def _sketch(anatomy: Anatomy, stream: int, *, rows: list[Reading]) -> Sketch:
    length = period([(r.kind, r.join.via >= 0) for r in rows])
    repeats = len(rows) // length
    layers = [tuple(map(_said, rows[i * length : (i + 1) * length])) for i in range(repeats)]
    usual = Counter(layers).most_common(1)[0][0]
    middle = repeats // 2  # the ends may be unlike the others
    chosen = [i for i, layer in enumerate(layers) if layer == usual]
    first = min(chosen, key=lambda i: abs(i - middle)) * length
    pen = _Pen(anatomy)
    for reading in rows[first : first + min(length, MOST)]:
        pen.block(reading)
    for norm in rows[-1].final_norms[:1]:
        pen.at = pen.norm(norm, pen.at, layer=-2)
    pen.put(Piece("output", "y", (pen.at,), layer=-2))
    return Sketch(stream, repeats, tuple(pen.pieces))


def _said(reading: Reading) -> tuple[Any, ...]:
    """What a picture shows of a block."""
    join = reading.join
    flags = (join.projection, join.mixed, join.gated, reading.false, reading.post, reading.after)
    ends = (bool(reading.entry), reading.exit >= 0, len(reading.scales), len(join.scales))
    return (reading.kind, *flags, *ends)


class _Pen:
    """Puts down one piece after the other."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy
        self.pieces = [Piece("input", "x", layer=-1)]
        self.at = 0
        """Where the stream is."""
        self.read: dict[int, int] = {}
        """Where the branch of each join began."""

    def put(self, piece: Piece) -> int:
        self.pieces.append(piece)
        return len(self.pieces) - 1

    def norm(self, node: int, source: int, *, layer: int = 0) -> int:
        kind = self.anatomy.norms[node].kind
        return self.put(Piece("norm", TITLES.get(kind, kind), (source,), layer))

    def scales(self, scales: tuple[Scale, ...], source: int) -> int:
        for scale in scales:
            if scale.kind == "input" or (scale.kind == "constant" and scale.value in (None, 1.0)):
                continue
            many = scale.size > 1 and scale.kind == "weight"
            value = "learned" if scale.value is None or many else f"{scale.value:.3g}"
            learned = scale.kind == "weight"
            source = self.put(Piece("scale", value, (source,), learned=learned))
        return source

    def block(self, reading: Reading) -> None:
        join = reading.join
        norms = reading.link.norms()
        if reading.false and norms:
            self.at = self.norm(norms[0], self.at)
        start = self.read.get(join.via, self.at)
        self.read[join.node] = start
        branch = start
        for node in reading.entry[:1]:
            branch = self.norm(node, branch)
        label = {"other": "Blocks"}.get(reading.kind, reading.kind.capitalize())
        branch = self.put(Piece("sublayer", label, (branch,)))
        if reading.exit >= 0:
            branch = self.norm(reading.exit, branch)
        branch = self.scales(reading.scales, branch)
        shortcut = self.at
        if join.projection:
            shortcut = self.put(Piece("mix", "Matrix", (shortcut,), learned=True))
        if join.mixed:
            shortcut = self.put(Piece("mix", "Mix streams", (shortcut,), learned=True))
        if join.gated and not join.mixed:
            branch = self.put(Piece("mix", "Gate", (branch,), learned=True))
        shortcut = self.scales(join.scales, shortcut)
        self.at = self.put(Piece("add", "+", (shortcut, branch)))
        if reading.after:
            self.at = self.put(Piece("mix", reading.after, (self.at,)))
        if reading.post and reading.post_norm >= 0:
            self.at = self.norm(reading.post_norm, self.at)
