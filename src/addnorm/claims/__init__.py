"""Published statements, each with its source, an experiment and a rule that judges it.

A claim is one file. It says what was stated where, measures it at the start of models (`AtStart`)
or by training (`ByTraining`), and turns rows into a verdict: held, not held or undecided. To add
one: a file, and a line below.
"""

from addnorm.claims.base import BUDGETS, Budget, Claim, Desk, Drawing, registry
from addnorm.claims.batch_statistics import BatchStatistics
from addnorm.claims.conduct import Watch, run_claims
from addnorm.claims.dependency import Dependency
from addnorm.claims.epsilon_outside import EpsilonOutside
from addnorm.claims.gradient_product import GradientProduct
from addnorm.claims.last_gradient import LastGradient
from addnorm.claims.layer_norm_length import LayerNormLength
from addnorm.claims.one_update import OneUpdate
from addnorm.claims.position_lost import PositionLost
from addnorm.claims.rank_collapse import RankCollapse
from addnorm.claims.record import Result, results
from addnorm.claims.rezero_identity import RezeroIdentity
from addnorm.claims.stream_growth import StreamGrowth
from addnorm.claims.third_position import ThirdPosition
from addnorm.claims.verdict import RULE, Check, Verdict

__all__ = [
    "BUDGETS",
    "BatchStatistics",
    "Budget",
    "Check",
    "Claim",
    "Dependency",
    "Desk",
    "Drawing",
    "EpsilonOutside",
    "GradientProduct",
    "LastGradient",
    "LayerNormLength",
    "OneUpdate",
    "PositionLost",
    "RULE",
    "RankCollapse",
    "Result",
    "RezeroIdentity",
    "StreamGrowth",
    "ThirdPosition",
    "Verdict",
    "Watch",
    "registry",
    "results",
    "run_claims",
]
