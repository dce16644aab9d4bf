"""Norms, one a file, chosen by call string."""

from addnorm.norms.base import Norm, make_norm, registry
from addnorm.norms.layer import LayerNorm
from addnorm.norms.scale import ScaleNorm

__all__ = ["LayerNorm", "Norm", "ScaleNorm", "make_norm", "registry"]
