"""Rules for models of other sizes, one per module, chosen by call string."""

from addnorm.scales.base import Factors, Scale, make_scale, registry
from addnorm.scales.completep import CompleteP
from addnorm.scales.depth_mup import DepthMuP
from addnorm.scales.mup import MuP

__all__ = ["CompleteP", "DepthMuP", "Factors", "MuP", "Scale", "make_scale", "registry"]
