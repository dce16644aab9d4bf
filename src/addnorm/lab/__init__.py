"""Comparisons: which arrangement trains, at which depth, at which learning rate."""

from addnorm.lab.conduct import compare
from addnorm.lab.grid import Arm, Cell, Grid
from addnorm.lab.spec import Comparison
from addnorm.lab.study import Judged, Study

__all__ = ["Arm", "Cell", "Comparison", "Grid", "Judged", "Study", "compare"]
