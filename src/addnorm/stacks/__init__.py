"""Stacks: the loop, the start of the weights, the taps."""

from addnorm.stacks.stack import Stack
from addnorm.stacks.taps import Tap, Taps

__all__ = ["Stack", "Tap", "Taps"]
