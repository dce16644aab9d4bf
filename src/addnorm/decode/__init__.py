"""Decoding: greedy, sampling and beam search over the cache; answers to lines; evaluation."""

from addnorm.decode.batching import decode
from addnorm.decode.greedy import Hypothesis
from addnorm.decode.inference import (
    GeneratedText,
    InputWarnings,
    LabelPrediction,
    classify,
    generate_texts,
    translate,
)
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence

__all__ = [
    "GeneratedText",
    "Hypothesis",
    "InputWarnings",
    "DecodingOptions",
    "Sentence",
    "LabelPrediction",
    "classify",
    "generate_texts",
    "decode",
    "translate",
]
