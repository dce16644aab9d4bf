"""Sub-layers: attention, feed-forward, positions, masks and the key-value cache.

A sub-layer maps (B, L, dim) to (B, L, dim). It contains no norm, skip or add: those belong to the
wiring.
"""

from addnorm.sublayers.attention import CrossAttention, SelfAttention
from addnorm.sublayers.base import Sublayer
from addnorm.sublayers.cache import KVCache
from addnorm.sublayers.feedforward import FeedForward
from addnorm.sublayers.mixture import MixtureOfExperts
from addnorm.sublayers.positions import (
    LearnedPositions,
    NoPositions,
    Positions,
    Rotation,
    SinusoidalPositions,
    make_positions,
)
from addnorm.sublayers.relative import AlibiBias, LearnedT5Positions, T5Bias
from addnorm.sublayers.rotary import RotaryPositions

__all__ = [
    "AlibiBias",
    "CrossAttention",
    "FeedForward",
    "KVCache",
    "LearnedPositions",
    "LearnedT5Positions",
    "MixtureOfExperts",
    "NoPositions",
    "Positions",
    "RotaryPositions",
    "Rotation",
    "SelfAttention",
    "SinusoidalPositions",
    "Sublayer",
    "T5Bias",
    "make_positions",
]
