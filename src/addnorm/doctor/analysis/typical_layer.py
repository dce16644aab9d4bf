"""Typical layer of each stream: the elements that a diagram shows.

The blocks of a stream repeat with some period. The most frequent period, nearest to the middle of
the stack, becomes a list of elements:

    two Pre-LN blocks   ->   input, norm, sublayer, add, norm, sublayer, add, norm, output

An element refers to those that it reads by their positions. The add of a Post-LN layer reads the
input and the sub-layer:

    >>> import torch
    >>> import addnorm
    >>> from addnorm.doctor.model_trace import trace_model
    >>> ffns = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(3)]
    >>> stack = addnorm.Stack(ffns, dim=4, kinds=("ffn",), wiring="post_ln")
    >>> with trace_model(stack, torch.randn(2, 3, 4)) as trace:
    ...     (layer,) = build_typical_layers(trace.analysis)
    >>> layer.repeats, [(element.kind, element.inputs) for element in layer.elements]
    (3, [('input', ()), ('sublayer', (0,)), ('add', (0, 1)), ('norm', (2,)), ('output', (3,))])
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from addnorm.doctor.analysis.norms import TITLES
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.graph.nodes import Scale

MAX_ADDS = 8
"""Maximum number of residual adds that are drawn."""


@dataclass(frozen=True)
class LayerElement:
    """A box, a plus or a factor that the diagram draws."""

    kind: str
    """input, output, norm, sublayer, add, scale, or mix for anything else."""
    label: str
    inputs: tuple[int, ...] = ()
    """Positions of the elements that it reads."""
    layer: int = 0
    """0 in the layer, -1 before the first layer, -2 after the last one."""
    learned: bool = False


@dataclass(frozen=True)
class TypicalLayer:
    """The most frequent layer of a stream, as a graph of elements."""

    stream: int
    repeats: int
    """Number of layers in the stream."""
    elements: tuple[LayerElement, ...]


def build_typical_layers(analysis: ModelAnalysis) -> tuple[TypicalLayer, ...]:
    """Return a typical layer for each stream."""
    streams: dict[int, list[AddAnalysis]] = {}
    for block in analysis.blocks():
        streams.setdefault(block.stream, []).append(block)
    return tuple(
        _build_typical_layer(analysis, stream, blocks=blocks) for stream, blocks in streams.items()
    )


def find_period(kinds: list[Any]) -> int:
    """Return the smallest period with which a whole list repeats.

    >>> find_period(["a", "b", "a", "b"])
    2
    """
    return next(
        p for p in range(1, len(kinds) + 1)
        if len(kinds) % p == 0 and kinds == kinds[:p] * (len(kinds) // p)
    )  # fmt: skip


def _build_typical_layer(
    analysis: ModelAnalysis, stream: int, *, blocks: list[AddAnalysis]
) -> TypicalLayer:
    length = find_period([(b.kind, b.add.parallel_to is not None) for b in blocks])
    repeats = len(blocks) // length
    layers = [
        tuple(map(_layer_signature, blocks[i * length : (i + 1) * length])) for i in range(repeats)
    ]
    most_common = Counter(layers).most_common(1)[0][0]
    candidates = [i for i, layer in enumerate(layers) if layer == most_common]
    middle = repeats // 2  # the first and last layers may differ from the others
    first = min(candidates, key=lambda i: abs(i - middle)) * length
    builder = _LayerBuilder(analysis)
    for block in blocks[first : first + min(length, MAX_ADDS)]:
        builder.add_block(block)
    for norm in blocks[-1].final_norms[:1]:
        builder.position = builder.add_norm(norm, builder.position, layer=-2)
    builder.add(LayerElement("output", "y", (builder.position,), layer=-2))
    return TypicalLayer(stream, repeats, tuple(builder.elements))


def _layer_signature(block: AddAnalysis) -> tuple[Any, ...]:
    """Return what a diagram shows of a block."""
    add = block.add
    return (
        block.kind,
        add.has_projection,
        add.is_mixed,
        add.is_gated,
        block.is_false_pre_norm,
        block.has_post_norm,
        block.activation_after,
        block.has_pre_norm,
        block.exit_norm is not None,
        len(block.scales),
        len(add.shortcut_scales),
    )


class _LayerBuilder:
    """Builder of the elements of a layer; `position` is the end of the stream so far."""

    def __init__(self, analysis: ModelAnalysis) -> None:
        self.analysis = analysis
        self.elements = [LayerElement("input", "x", layer=-1)]
        self.position = 0
        self.branch_starts: dict[int, int] = {}
        """Position where the branch of each add starts, by node."""

    def add(self, element: LayerElement) -> int:
        self.elements.append(element)
        return len(self.elements) - 1

    def add_norm(self, node: int, source: int, *, layer: int = 0) -> int:
        kind = self.analysis.norms[node].kind
        return self.add(LayerElement("norm", TITLES.get(kind, kind), (source,), layer))

    def add_scales(self, scales: tuple[Scale, ...], source: int) -> int:
        for scale in scales:
            if scale.kind == "input" or (scale.kind == "constant" and scale.value in (None, 1.0)):
                continue
            learned = scale.kind == "weight"
            is_vector = learned and scale.size > 1
            label = "learned" if scale.value is None or is_vector else f"{scale.value:.3g}"
            source = self.add(LayerElement("scale", label, (source,), learned=learned))
        return source

    def add_block(self, block: AddAnalysis) -> None:
        add = block.add
        norms = block.link.norms()
        if block.is_false_pre_norm and norms:
            self.position = self.add_norm(norms[0], self.position)
        start = self.position
        if add.parallel_to is not None:
            start = self.branch_starts.get(add.parallel_to, start)
        self.branch_starts[add.node] = start
        branch = start
        for node in block.entry_norms[:1]:
            branch = self.add_norm(node, branch)
        label = {"other": "Blocks"}.get(block.kind, block.kind.capitalize())
        branch = self.add(LayerElement("sublayer", label, (branch,)))
        if block.exit_norm is not None:
            branch = self.add_norm(block.exit_norm, branch)
        branch = self.add_scales(block.scales, branch)
        shortcut = self.position
        if add.has_projection:
            shortcut = self.add(LayerElement("mix", "Matrix", (shortcut,), learned=True))
        if add.is_mixed:
            shortcut = self.add(LayerElement("mix", "Mix streams", (shortcut,), learned=True))
        if add.is_gated and not add.is_mixed:
            branch = self.add(LayerElement("mix", "Gate", (branch,), learned=True))
        shortcut = self.add_scales(add.shortcut_scales, shortcut)
        self.position = self.add(LayerElement("add", "+", (shortcut, branch)))
        if block.activation_after:
            self.position = self.add(LayerElement("mix", block.activation_after, (self.position,)))
        if block.has_post_norm and block.post_norm is not None:
            self.position = self.add_norm(block.post_norm, self.position)
