"""Reports: what was built or measured, for the eye."""

from addnorm.report.diagram.blocks import BlockDiagram, build_block_diagram
from addnorm.report.diagram.draw import draw, save

__all__ = ["BlockDiagram", "build_block_diagram", "draw", "save"]
