"""Decoding: greedy, sampling and beam search over the cache; answers to lines; evaluation."""

from addnorm.decode.answers import Answer, Labelled, Notes, classify, continue_text, translate
from addnorm.decode.options import Options
from addnorm.decode.search import decode
from addnorm.decode.stepper import Sentence
from addnorm.decode.walk import Hypothesis

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
