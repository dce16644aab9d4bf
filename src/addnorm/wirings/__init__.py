"""Wirings, one paper per module, chosen by call string."""

from addnorm.wirings.admin import Admin
from addnorm.wirings.attn_res import AttnRes
from addnorm.wirings.b2t import B2T
from addnorm.wirings.base import State, Wiring, make_wiring, registry
from addnorm.wirings.deep_delta import DeepDelta
from addnorm.wirings.deepnorm import DeepNorm
from addnorm.wirings.denseformer import DenseFormer
from addnorm.wirings.dlcl import DLCL
from addnorm.wirings.drop_path import DropPath
from addnorm.wirings.false_pre_ln import FalsePreLN
from addnorm.wirings.fixup import Fixup
from addnorm.wirings.gated import Gated
from addnorm.wirings.gpas import GPAS
from addnorm.wirings.hybrid_norm import HybridNorm
from addnorm.wirings.hyper import HyperConnections
from addnorm.wirings.keel import Keel
from addnorm.wirings.laurel import LAuReL
from addnorm.wirings.layer_drop import LayerDrop
from addnorm.wirings.layer_scale import LayerScale
from addnorm.wirings.ln_scaling import LNScaling
from addnorm.wirings.mhc import MHC
from addnorm.wirings.mix_ln import MixLN
from addnorm.wirings.mudd import MUDD
from addnorm.wirings.nanochat import Nanochat
from addnorm.wirings.ngpt import NGPT
from addnorm.wirings.none import PlainResidual
from addnorm.wirings.normformer import NormFormer
from addnorm.wirings.parallel import Parallel
from addnorm.wirings.post_ln import PostLN
from addnorm.wirings.pre_ln import PreLN
from addnorm.wirings.res_post import ResPost
from addnorm.wirings.res_scale import ResScale
from addnorm.wirings.resi_dual import ResiDual
from addnorm.wirings.rezero import ReZero
from addnorm.wirings.sandwich import Sandwich
from addnorm.wirings.scaled import Scaled
from addnorm.wirings.siamese import Siamese
from addnorm.wirings.skip_init import SkipInit
from addnorm.wirings.sub_ln import SubLN
from addnorm.wirings.t_fixup import TFixup
from addnorm.wirings.u_skips import USkips

__all__ = [
    "Admin",
    "AttnRes",
    "B2T",
    "DLCL",
    "DeepDelta",
    "DeepNorm",
    "DenseFormer",
    "DropPath",
    "FalsePreLN",
    "Fixup",
    "GPAS",
    "Gated",
    "HybridNorm",
    "HyperConnections",
    "Keel",
    "LAuReL",
    "LNScaling",
    "LayerDrop",
    "LayerScale",
    "MHC",
    "MUDD",
    "MixLN",
    "NGPT",
    "Nanochat",
    "NormFormer",
    "Parallel",
    "PlainResidual",
    "PostLN",
    "PreLN",
    "ReZero",
    "ResPost",
    "ResScale",
    "ResiDual",
    "Sandwich",
    "Scaled",
    "Siamese",
    "SkipInit",
    "State",
    "SubLN",
    "TFixup",
    "USkips",
    "Wiring",
    "make_wiring",
    "registry",
]
