"""Sub-layers: attention, feed-forward, positions, masks, cache. None of them knows a wiring."""

from addnorm.sublayers.base import Sublayer

__all__ = ["Sublayer"]
