"""Published statements, each with its source, an experiment and a rule that judges it.

A claim is one file. It says what was stated where, measures it at the start of models (`AtStart`)
or by training (`ByTraining`), and turns rows into a verdict: held, not held or undecided. To add
one: a file, and a line below.
"""

from addnorm.claims.ada_norm_beats_layer_norm import AdaNormBeatsLayerNorm
from addnorm.claims.adafactor_slows_rezero import AdafactorSlowsRezero
from addnorm.claims.admin_trains_deep import AdminTrainsDeep
from addnorm.claims.attention_resists_corrupted_cells import AttentionResistsCorruptedCells
from addnorm.claims.b2t_trains_deep import B2tTrainsDeep
from addnorm.claims.base import BUDGETS, Budget, Claim, Desk, Drawing, registry
from addnorm.claims.batch_norm_is_worse import BatchNormIsWorse
from addnorm.claims.batch_statistics import BatchStatistics
from addnorm.claims.conduct import Watch, run_claims
from addnorm.claims.deep_layers_are_removable import DeepLayersAreRemovable
from addnorm.claims.deep_post_ln_fails import DeepPostLnFails
from addnorm.claims.deepnorm_trains_deep import DeepnormTrainsDeep
from addnorm.claims.dlcl_trains_deep import DlclTrainsDeep
from addnorm.claims.dyt_helps_small_data import DytHelpsSmallData
from addnorm.claims.epsilon_outside import EpsilonOutside
from addnorm.claims.false_pre_ln_is_post_ln import FalsePreLnIsPostLn
from addnorm.claims.fix_norm_helps_little_data import FixNormHelpsLittleData
from addnorm.claims.ft_transformer_first_norm import FtTransformerFirstNorm
from addnorm.claims.gain_and_bias_overfit import GainAndBiasOverfit
from addnorm.claims.gradient_product import GradientProduct
from addnorm.claims.last_gradient import LastGradient
from addnorm.claims.layer_norm_length import LayerNormLength
from addnorm.claims.one_update import OneUpdate
from addnorm.claims.position_lost import PositionLost
from addnorm.claims.post_ln_needs_warmup import PostLnNeedsWarmup
from addnorm.claims.radam_replaces_warmup import RadamReplacesWarmup
from addnorm.claims.rank_collapse import RankCollapse
from addnorm.claims.record import Result, results
from addnorm.claims.residual_dependency import ResidualDependency
from addnorm.claims.rezero_identity import RezeroIdentity
from addnorm.claims.rezero_is_faster import RezeroIsFaster
from addnorm.claims.rezero_trains_deep import RezeroTrainsDeep
from addnorm.claims.rms_norm_equals_layer_norm import RmsNormEqualsLayerNorm
from addnorm.claims.scale_norm_helps_little_data import ScaleNormHelpsLittleData
from addnorm.claims.shallow_post_ln_is_as_good import ShallowPostLnIsAsGood
from addnorm.claims.six_layers_are_enough import SixLayersAreEnough
from addnorm.claims.statistics_gradients_matter import StatisticsGradientsMatter
from addnorm.claims.stream_growth import StreamGrowth
from addnorm.claims.t_fixup_trains_deep import TFixupTrainsDeep
from addnorm.claims.third_position import ThirdPosition
from addnorm.claims.verdict import RULE, Check, Verdict

__all__ = [
    "AdaNormBeatsLayerNorm",
    "AdafactorSlowsRezero",
    "AdminTrainsDeep",
    "AttentionResistsCorruptedCells",
    "B2tTrainsDeep",
    "BUDGETS",
    "BatchNormIsWorse",
    "BatchStatistics",
    "Budget",
    "Check",
    "Claim",
    "DeepLayersAreRemovable",
    "DeepPostLnFails",
    "DeepnormTrainsDeep",
    "Desk",
    "DlclTrainsDeep",
    "Drawing",
    "DytHelpsSmallData",
    "EpsilonOutside",
    "FalsePreLnIsPostLn",
    "FixNormHelpsLittleData",
    "FtTransformerFirstNorm",
    "GainAndBiasOverfit",
    "GradientProduct",
    "LastGradient",
    "LayerNormLength",
    "OneUpdate",
    "PositionLost",
    "PostLnNeedsWarmup",
    "RULE",
    "RadamReplacesWarmup",
    "RankCollapse",
    "ResidualDependency",
    "Result",
    "RezeroIdentity",
    "RezeroIsFaster",
    "RezeroTrainsDeep",
    "RmsNormEqualsLayerNorm",
    "ScaleNormHelpsLittleData",
    "ShallowPostLnIsAsGood",
    "SixLayersAreEnough",
    "StatisticsGradientsMatter",
    "StreamGrowth",
    "TFixupTrainsDeep",
    "ThirdPosition",
    "Verdict",
    "Watch",
    "registry",
    "results",
    "run_claims",
]
