"""Stacks: the loop over sites, weight initialization, taps, and the standard encoder and
decoder."""

from addnorm.stacks.stack import Stack
from addnorm.stacks.taps import Tap, Taps
from addnorm.stacks.transformer import Decoder, Encoder

__all__ = ["Decoder", "Encoder", "Stack", "Tap", "Taps"]
