"""Decoding: greedy, sampling and beam search over the cache; answers to lines; evaluation."""

from addnorm.decode.batching import decode
from addnorm.decode.greedy import Hypothesis
from addnorm.decode.inference import Answer, Labelled, Notes, classify, continue_text, translate
from addnorm.decode.options import Options
from addnorm.decode.stepper import Sentence

__all__ = [
    "Answer",
    "Hypothesis",
    "Notes",
    "Options",
    "Sentence",
    "Labelled",
    "classify",
    "continue_text",
    "decode",
    "translate",
]
