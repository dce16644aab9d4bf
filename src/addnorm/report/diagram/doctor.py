"""Diagrams of a diagnosed model: a typical layer of each residual stream."""

from addnorm.doctor.analysis.typical_layer import LayerElement, TypicalLayer
from addnorm.doctor.report import Report
from addnorm.report.diagram.blocks import BlockDiagram
from addnorm.report.diagram.graph import Edge, Node
from addnorm.report.diagram.label_text import TIMES
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.svg import render_svg

MAX_STREAMS = 4
"""Maximum number of streams that are drawn."""


def doctor_diagram(report: Report, *, theme: str) -> str:
    """Return the typical layers of all streams, side by side, as SVG."""
    blocks = [_build_block(report, layer) for layer in report.sketches[:MAX_STREAMS]]
    return render_svg([compute_layout(block) for block in blocks], theme=theme)


def _build_block(report: Report, layer: TypicalLayer) -> BlockDiagram:
    graph = {
        index: Node(
            index, element.kind, _label(element), inputs=tuple(Edge(i) for i in element.inputs),
            layer=element.layer, learned=element.learned,
        )
        for index, element in enumerate(layer.elements)
    }  # fmt: skip
    first_block = next(block for block in report.blocks if block.stream == layer.stream)
    root = first_block.path.split(".")[0] or report.model
    title = report.model if len(report.sketches) == 1 else f"{root}, stream {layer.stream}"
    return BlockDiagram(title, "", "", graph, (layer.repeats,))


def _label(element: LayerElement) -> str:
    return f"{TIMES} {element.label}" if element.kind == "scale" else element.label
