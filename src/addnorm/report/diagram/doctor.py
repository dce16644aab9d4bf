"""A drawing of what the doctor saw: a typical layer of each stream, as it was recorded."""

from addnorm.doctor.analysis.typical_layer import Piece, Sketch
from addnorm.doctor.report import Report
from addnorm.report.diagram.blocks import Block
from addnorm.report.diagram.graph import Edge, Node
from addnorm.report.diagram.layout import layout
from addnorm.report.diagram.svg import svg
from addnorm.report.diagram.symbols import TIMES

MOST = 4
"""Streams that are drawn."""


def drawing(report: Report, *, theme: str) -> str:
    """The streams side by side, as SVG."""
    blocks = [_block(report, sketch) for sketch in report.sketches[:MOST]]
    return svg([layout(block) for block in blocks], theme=theme)


def _block(report: Report, sketch: Sketch) -> Block:
    graph = {
        place: Node(
            place, piece.kind, _label(piece), inputs=tuple(Edge(i) for i in piece.inputs),
            layer=piece.layer, learned=piece.learned,
        )
        for place, piece in enumerate(sketch.pieces)
    }  # fmt: skip
    first = next(b for b in report.blocks if b.stream == sketch.stream)
    home = first.path.split(".")[0] or report.model
    title = report.model if len(report.sketches) == 1 else f"{home}, stream {sketch.stream}"
    return Block(title, "", "", graph, (sketch.repeats,))


def _label(piece: Piece) -> str:
    return f"{TIMES} {piece.label}" if piece.kind == "scale" else piece.label
