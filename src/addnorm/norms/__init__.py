"""Norms, one per module, chosen by call string."""

from addnorm.norms.ada import AdaNorm
from addnorm.norms.ada_ln import AdaLN
from addnorm.norms.base import Norm, make_norm, registry
from addnorm.norms.batch import BatchNorm
from addnorm.norms.constant_std import ConstantStd
from addnorm.norms.derf import Derf
from addnorm.norms.detach import DetachNorm
from addnorm.norms.dyt import DyT
from addnorm.norms.fixnorm import FixNorm
from addnorm.norms.gatednorm import GatedNorm
from addnorm.norms.group import GroupNorm
from addnorm.norms.instance import InstanceNorm
from addnorm.norms.l2 import L2Norm
from addnorm.norms.layer import LayerNorm
from addnorm.norms.none import NoNorm
from addnorm.norms.power import PowerNorm
from addnorm.norms.rms import RMSNorm
from addnorm.norms.scale import ScaleNorm
from addnorm.norms.seednorm import SeeDNorm

__all__ = [
    "AdaLN",
    "AdaNorm",
    "BatchNorm",
    "ConstantStd",
    "Derf",
    "DetachNorm",
    "DyT",
    "FixNorm",
    "GatedNorm",
    "GroupNorm",
    "InstanceNorm",
    "L2Norm",
    "LayerNorm",
    "NoNorm",
    "Norm",
    "PowerNorm",
    "RMSNorm",
    "ScaleNorm",
    "SeeDNorm",
    "make_norm",
    "registry",
]
