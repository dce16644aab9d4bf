"""Comparisons: which arrangement trains, at which depth, at which learning rate."""

from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.grid import Arm, Cell, Grid
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.spec import Comparison

__all__ = [
    "Arm",
    "Cell",
    "CellOutcome",
    "Comparison",
    "Grid",
    "Study",
    "parse_comparison",
    "run_comparison",
]
