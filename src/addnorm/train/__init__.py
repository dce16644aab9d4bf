"""Training: recipes, optimizers, schedules, the loop, checkpoints, runs."""

from addnorm.train.adafactor import Adafactor
from addnorm.train.adam import Adam, AdamW, RAdam
from addnorm.train.loop import train
from addnorm.train.muon import Muon
from addnorm.train.optim import make_optimizer
from addnorm.train.recipe import Recipe, read_recipe
from addnorm.train.run import Run
from addnorm.train.schedule import make_schedule, noam_peak, recommended
from addnorm.train.schedules import (
    WSD,
    Constant,
    Cosine,
    DecaySqrt,
    InverseSqrt,
    Linear,
    WarmConstant,
)

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
    "Run",
    "WSD",
    "WarmConstant",
    "make_optimizer",
    "make_schedule",
    "noam_peak",
    "read_recipe",
    "recommended",
    "train",
]
