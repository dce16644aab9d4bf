"""Reports: what was built or measured, for the eye."""

from addnorm.report.blocks import Block, block
from addnorm.report.draw import draw, save

__all__ = ["Block", "block", "draw", "save"]
