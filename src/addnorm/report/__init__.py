"""Reports: what was built or measured, for the eye."""

from addnorm.report.diagram.blocks import Block, block
from addnorm.report.diagram.draw import draw, save

__all__ = ["Block", "block", "draw", "save"]
