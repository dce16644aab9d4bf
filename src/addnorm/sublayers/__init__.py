"""Sub-layers: attention, feed-forward, positions, masks, cache. None of them knows a wiring."""

from addnorm.sublayers.attention import CrossAttention, SelfAttention
from addnorm.sublayers.base import Sublayer
from addnorm.sublayers.cache import KVCache
from addnorm.sublayers.feedforward import FeedForward
from addnorm.sublayers.positions import (
    Learned,
    NoPositions,
    Positions,
    Rotation,
    Sinusoid,
    make_positions,
)
from addnorm.sublayers.relative import T5, Alibi
from addnorm.sublayers.rotary import Rotary

__all__ = [
    "Alibi",
    "CrossAttention",
    "FeedForward",
    "KVCache",
    "Learned",
    "NoPositions",
    "Positions",
    "Rotary",
    "Rotation",
    "SelfAttention",
    "Sinusoid",
    "Sublayer",
    "T5",
    "make_positions",
]
