"""Training: recipes, optimizers, schedules, the training loop, checkpoints and trained runs."""

from addnorm.train.optimizers.adafactor import Adafactor
from addnorm.train.optimizers.adam import Adam, AdamW, RAdam
from addnorm.train.optimizers.base import make_optimizer
from addnorm.train.optimizers.muon import Muon
from addnorm.train.recipe import Recipe, read_recipe
from addnorm.train.schedules.base import make_schedule, noam_peak, recommended_schedule
from addnorm.train.schedules.schedules import (
    WSD,
    Constant,
    Cosine,
    DecaySqrt,
    InverseSqrt,
    Linear,
    WarmConstant,
)
from addnorm.train.trained_run import TrainedRun, load_run_model
from addnorm.train.trainer import train

__all__ = [
    "Adafactor",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "DecaySqrt",
    "InverseSqrt",
    "Linear",
    "Muon",
    "RAdam",
    "Recipe",
    "TrainedRun",
    "WSD",
    "WarmConstant",
    "load_run_model",
    "make_optimizer",
    "make_schedule",
    "noam_peak",
    "read_recipe",
    "recommended_schedule",
    "train",
]
