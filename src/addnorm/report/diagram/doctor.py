"""A drawing of what the doctor saw: a typical layer of each stream, as it was recorded."""

from addnorm.doctor.analysis.typical_layer import LayerElement, TypicalLayer
from addnorm.doctor.report import Report
from addnorm.report.diagram.blocks import BlockDiagram
from addnorm.report.diagram.graph import Edge, Node
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.svg import render_svg
from addnorm.report.diagram.symbols import TIMES

MAX_STREAMS = 4
"""Streams that are drawn."""


def doctor_diagram(report: Report, *, theme: str) -> str:
    """The streams side by side, as SVG."""
    blocks = [_build_block(report, sketch) for sketch in report.sketches[:MAX_STREAMS]]
    return render_svg([compute_layout(block) for block in blocks], theme=theme)


def _build_block(report: Report, sketch: TypicalLayer) -> BlockDiagram:
    graph = {
        place: Node(
            place, piece.kind, _label(piece), inputs=tuple(Edge(i) for i in piece.inputs),
            layer=piece.layer, learned=piece.learned,
        )
        for place, piece in enumerate(sketch.elements)
    }  # fmt: skip
    first = next(b for b in report.blocks if b.stream == sketch.stream)
    home = first.path.split(".")[0] or report.model
    title = report.model if len(report.sketches) == 1 else f"{home}, stream {sketch.stream}"
    return BlockDiagram(title, "", "", graph, (sketch.repeats,))


def _label(piece: LayerElement) -> str:
    return f"{TIMES} {piece.label}" if piece.kind == "scale" else piece.label
