"""Published claims about norms and residual connections, reproduced and judged.

A claim is one file in `catalogue/`. It names the statement and its source, measures it on untrained
models (`InitClaim`) or by training (`ComparisonClaim`), and turns the measured rows into a verdict:
held, not held or undecided. To add a claim, add its file and import it below.
"""

from addnorm.claims.callbacks import ClaimsCallback
from addnorm.claims.catalogue.ada_norm_beats_layer_norm import AdaNormBeatsLayerNorm
from addnorm.claims.catalogue.adafactor_slows_rezero import AdafactorSlowsRezero
from addnorm.claims.catalogue.admin_trains_deep import AdminTrainsDeep
from addnorm.claims.catalogue.attention_resists_corrupted_cells import (
    AttentionResistsCorruptedCells,
)
from addnorm.claims.catalogue.b2t_trains_deep import B2tTrainsDeep
from addnorm.claims.catalogue.batch_norm_is_worse import BatchNormIsWorse
from addnorm.claims.catalogue.batch_statistics import BatchStatistics
from addnorm.claims.catalogue.deep_layers_are_removable import DeepLayersAreRemovable
from addnorm.claims.catalogue.deep_post_ln_fails import DeepPostLnFails
from addnorm.claims.catalogue.deep_post_ln_fails_on_multi30k import (
    DeepPostLnFailsOnMulti30k,
)
from addnorm.claims.catalogue.deepnorm_trains_deep import DeepnormTrainsDeep
from addnorm.claims.catalogue.dlcl_trains_deep import DlclTrainsDeep
from addnorm.claims.catalogue.dyt_helps_small_data import DytHelpsSmallData
from addnorm.claims.catalogue.epsilon_outside import EpsilonOutside
from addnorm.claims.catalogue.false_pre_ln_is_post_ln import FalsePreLnIsPostLn
from addnorm.claims.catalogue.fix_norm_helps_little_data import FixNormHelpsLittleData
from addnorm.claims.catalogue.ft_transformer_first_norm import FtTransformerFirstNorm
from addnorm.claims.catalogue.ft_transformer_first_norm_on_california import (
    FtTransformerFirstNormOnCalifornia,
)
from addnorm.claims.catalogue.gain_and_bias_overfit import GainAndBiasOverfit
from addnorm.claims.catalogue.gradient_product import GradientProduct
from addnorm.claims.catalogue.last_gradient import LastGradient
from addnorm.claims.catalogue.layer_norm_length import LayerNormLength
from addnorm.claims.catalogue.ln_scaling_limits_growth import LNScalingLimitsGrowth
from addnorm.claims.catalogue.one_update import OneUpdate
from addnorm.claims.catalogue.position_lost import PositionLost
from addnorm.claims.catalogue.post_ln_needs_warmup import PostLnNeedsWarmup
from addnorm.claims.catalogue.post_ln_needs_warmup_on_multi30k import (
    PostLnNeedsWarmupOnMulti30k,
)
from addnorm.claims.catalogue.radam_replaces_warmup import RadamReplacesWarmup
from addnorm.claims.catalogue.rank_collapse import RankCollapse
from addnorm.claims.catalogue.rate_transfers_with_deepnorm import RateTransfersWithDeepnorm
from addnorm.claims.catalogue.rate_transfers_with_post_ln import RateTransfersWithPostLn
from addnorm.claims.catalogue.rate_transfers_with_pre_ln import RateTransfersWithPreLn
from addnorm.claims.catalogue.residual_dependency import ResidualDependency
from addnorm.claims.catalogue.rezero_identity import RezeroIdentity
from addnorm.claims.catalogue.rezero_is_faster import RezeroIsFaster
from addnorm.claims.catalogue.rezero_trains_deep import RezeroTrainsDeep
from addnorm.claims.catalogue.rms_norm_equals_layer_norm import RmsNormEqualsLayerNorm
from addnorm.claims.catalogue.rms_norm_equals_layer_norm_on_wikitext import (
    RmsNormEqualsLayerNormOnWikitext,
)
from addnorm.claims.catalogue.scale_norm_helps_little_data import ScaleNormHelpsLittleData
from addnorm.claims.catalogue.shallow_post_ln_is_as_good import ShallowPostLnIsAsGood
from addnorm.claims.catalogue.six_layers_are_enough import SixLayersAreEnough
from addnorm.claims.catalogue.statistics_gradients_matter import StatisticsGradientsMatter
from addnorm.claims.catalogue.stream_growth import StreamGrowth
from addnorm.claims.catalogue.t_fixup_trains_deep import TFixupTrainsDeep
from addnorm.claims.catalogue.third_position import ThirdPosition
from addnorm.claims.checks import RULE, Check, Verdict
from addnorm.claims.claim import BUDGETS, Budget, ChartSpec, Claim, ClaimWorkspace, registry
from addnorm.claims.result import Result, read_results
from addnorm.claims.runner import run_claims

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
    "DeepPostLnFailsOnMulti30k",
    "DeepnormTrainsDeep",
    "ClaimWorkspace",
    "DlclTrainsDeep",
    "ChartSpec",
    "DytHelpsSmallData",
    "EpsilonOutside",
    "FalsePreLnIsPostLn",
    "FixNormHelpsLittleData",
    "FtTransformerFirstNorm",
    "FtTransformerFirstNormOnCalifornia",
    "GainAndBiasOverfit",
    "GradientProduct",
    "LastGradient",
    "LayerNormLength",
    "LNScalingLimitsGrowth",
    "OneUpdate",
    "PositionLost",
    "PostLnNeedsWarmup",
    "PostLnNeedsWarmupOnMulti30k",
    "RULE",
    "RadamReplacesWarmup",
    "RankCollapse",
    "RateTransfersWithDeepnorm",
    "RateTransfersWithPostLn",
    "RateTransfersWithPreLn",
    "ResidualDependency",
    "Result",
    "RezeroIdentity",
    "RezeroIsFaster",
    "RezeroTrainsDeep",
    "RmsNormEqualsLayerNorm",
    "RmsNormEqualsLayerNormOnWikitext",
    "ScaleNormHelpsLittleData",
    "ShallowPostLnIsAsGood",
    "SixLayersAreEnough",
    "StatisticsGradientsMatter",
    "StreamGrowth",
    "TFixupTrainsDeep",
    "ThirdPosition",
    "Verdict",
    "ClaimsCallback",
    "registry",
    "read_results",
    "run_claims",
]
