"""Decoding of token sequences: greedy search, sampling and beam search over the key-value cache."""

from addnorm.decode.batching import decode
from addnorm.decode.greedy import Hypothesis
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence

__all__ = ["DecodingOptions", "Hypothesis", "Sentence", "decode"]
