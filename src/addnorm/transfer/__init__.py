"""Whether settings carry over to other widths and depths: the coordinate check."""

from addnorm.transfer.coordcheck import CoordinateCheck, coordcheck
from addnorm.transfer.slopes import Slope

__all__ = ["CoordinateCheck", "Slope", "coordcheck"]
