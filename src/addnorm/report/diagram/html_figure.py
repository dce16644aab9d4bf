"""A diagram as a part of an HTML page."""

from collections.abc import Sequence

from addnorm.report.diagram.layout import Diagram
from addnorm.report.diagram.svg import render_svg
from addnorm.report.html.page import Figure


def diagram_figure(title: str, diagrams: Sequence[Diagram]) -> Figure:
    """Return diagrams side by side, rendered once for each theme."""
    return Figure(title, render_svg(diagrams, theme="light"), render_svg(diagrams, theme="dark"))
