"""A typical layer of each stream, node by node as it was recorded: what a picture is drawn from."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from addnorm.doctor.analysis.norms import TITLES
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.graph.nodes import Scale

MAX_ADDS = 8
"""Adds that are drawn where nothing repeats."""


@dataclass(frozen=True)
class LayerElement:
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
class TypicalLayer:
    """A typical layer of one stream."""

    stream: int
    repeats: int
    """How many layers in a row it stands for."""
    elements: tuple[LayerElement, ...]


def build_typical_layers(analysis: ModelAnalysis) -> tuple[TypicalLayer, ...]:
    """One for each stream."""
    streams: dict[int, list[AddAnalysis]] = {}
    for reading in analysis.blocks():
        streams.setdefault(reading.stream, []).append(reading)
    return tuple(
        _build_typical_layer(analysis, stream, readings=rows) for stream, rows in streams.items()
    )


def find_period(kinds: list[Any]) -> int:
    """After how many a list repeats, from the first to the last.

    >>> period(["a", "b", "a", "b"])
    2
    """
    return next(
        p for p in range(1, len(kinds) + 1)
        if len(kinds) % p == 0 and kinds == kinds[:p] * (len(kinds) // p)
    )  # fmt: skip


def _build_typical_layer(
    analysis: ModelAnalysis, stream: int, *, readings: list[AddAnalysis]
) -> TypicalLayer:
    length = find_period([(r.kind, r.add.parallel_to >= 0) for r in readings])
    repeats = len(readings) // length
    layers = [
        tuple(map(_layer_signature, readings[i * length : (i + 1) * length]))
        for i in range(repeats)
    ]
    usual = Counter(layers).most_common(1)[0][0]
    middle = repeats // 2  # the ends may be unlike the others
    chosen = [i for i, layer in enumerate(layers) if layer == usual]
    first = min(chosen, key=lambda i: abs(i - middle)) * length
    pen = _LayerBuilder(analysis)
    for reading in readings[first : first + min(length, MAX_ADDS)]:
        pen.add_block(reading)
    for norm in readings[-1].final_norms[:1]:
        pen.position = pen.add_norm(norm, pen.position, layer=-2)
    pen.add(LayerElement("output", "y", (pen.position,), layer=-2))
    return TypicalLayer(stream, repeats, tuple(pen.elements))


def _layer_signature(reading: AddAnalysis) -> tuple[Any, ...]:
    """What a picture shows of a block."""
    join = reading.add
    flags = (
        join.has_projection,
        join.is_mixed,
        join.is_gated,
        reading.is_false_pre_norm,
        reading.has_post_norm,
        reading.activation_after,
    )
    ends = (
        bool(reading.entry_norms),
        reading.exit_norm >= 0,
        len(reading.scales),
        len(join.shortcut_scales),
    )
    return (reading.kind, *flags, *ends)


class _LayerBuilder:
    """Puts down one piece after the other."""

    def __init__(self, analysis: ModelAnalysis) -> None:
        self.anatomy = analysis
        self.elements = [LayerElement("input", "x", layer=-1)]
        self.position = 0
        """Where the stream is."""
        self.branch_starts: dict[int, int] = {}
        """Where the branch of each join began."""

    def add(self, element: LayerElement) -> int:
        self.elements.append(element)
        return len(self.elements) - 1

    def add_norm(self, node: int, source: int, *, layer: int = 0) -> int:
        kind = self.anatomy.norms[node].kind
        return self.add(LayerElement("norm", TITLES.get(kind, kind), (source,), layer))

    def add_scales(self, scales: tuple[Scale, ...], source: int) -> int:
        for scale in scales:
            if scale.kind == "input" or (scale.kind == "constant" and scale.value in (None, 1.0)):
                continue
            many = scale.size > 1 and scale.kind == "weight"
            value = "learned" if scale.value is None or many else f"{scale.value:.3g}"
            learned = scale.kind == "weight"
            source = self.add(LayerElement("scale", value, (source,), learned=learned))
        return source

    def add_block(self, reading: AddAnalysis) -> None:
        join = reading.add
        norms = reading.link.norms()
        if reading.is_false_pre_norm and norms:
            self.position = self.add_norm(norms[0], self.position)
        start = self.branch_starts.get(join.parallel_to, self.position)
        self.branch_starts[join.node] = start
        branch = start
        for node in reading.entry_norms[:1]:
            branch = self.add_norm(node, branch)
        label = {"other": "Blocks"}.get(reading.kind, reading.kind.capitalize())
        branch = self.add(LayerElement("sublayer", label, (branch,)))
        if reading.exit_norm >= 0:
            branch = self.add_norm(reading.exit_norm, branch)
        branch = self.add_scales(reading.scales, branch)
        shortcut = self.position
        if join.has_projection:
            shortcut = self.add(LayerElement("mix", "Matrix", (shortcut,), learned=True))
        if join.is_mixed:
            shortcut = self.add(LayerElement("mix", "Mix streams", (shortcut,), learned=True))
        if join.is_gated and not join.is_mixed:
            branch = self.add(LayerElement("mix", "Gate", (branch,), learned=True))
        shortcut = self.add_scales(join.shortcut_scales, shortcut)
        self.position = self.add(LayerElement("add", "+", (shortcut, branch)))
        if reading.activation_after:
            self.position = self.add(
                LayerElement("mix", reading.activation_after, (self.position,))
            )
        if reading.has_post_norm and reading.post_norm >= 0:
            self.position = self.add_norm(reading.post_norm, self.position)
