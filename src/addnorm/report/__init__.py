"""HTML pages, charts and block diagrams.

`html` holds the parts of a page, `charts` turns rows into Vega-Lite charts, `diagram` draws block
diagrams, `comparison` builds the page of a comparison. The modules `*_page` build the other pages.
"""

from addnorm.report.diagram.blocks import BlockDiagram, build_block_diagram
from addnorm.report.diagram.draw import draw, save

__all__ = ["BlockDiagram", "build_block_diagram", "draw", "save"]
