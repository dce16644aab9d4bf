"""Comparisons: which arrangement trains, at which depth, at which learning rate."""

from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.grid import Arm, Cell, Grid
from addnorm.comparison.run import compare
from addnorm.comparison.spec import Comparison

__all__ = ["Arm", "Cell", "Comparison", "Grid", "CellOutcome", "Study", "compare"]
