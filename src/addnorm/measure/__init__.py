"""Measurements: what happens at the sites of a stack, as rows, one question a file.

Questions about a forward are functions of a `Sight` and stand in `QUESTIONS`; `forward_rows` asks
them all, and `Monitor` asks them of a training, with gradients and updates beside. To add one:
a file with its function, and a line in `QUESTIONS`.
"""

from addnorm.measure.attention import attention_maps
from addnorm.measure.attention_entropy import attention_entropy
from addnorm.measure.gradient_norm import gradient_squares
from addnorm.measure.max_logit import max_logit
from addnorm.measure.monitor import Monitor
from addnorm.measure.nonfinite import Nonfinite, first_nonfinite
from addnorm.measure.probe import QUESTIONS, forward_rows
from addnorm.measure.residual_dependency import dependency
from addnorm.measure.site_activations import Sight
from addnorm.measure.sites import parameters_of, stacks_of
from addnorm.measure.spikes import SpikeDetector
from addnorm.measure.stream_variance import stream_variance
from addnorm.measure.update_ratio import update_squares

__all__ = [
    "Monitor",
    "Nonfinite",
    "QUESTIONS",
    "Sight",
    "SpikeDetector",
    "attention_entropy",
    "attention_maps",
    "dependency",
    "first_nonfinite",
    "forward_rows",
    "gradient_squares",
    "max_logit",
    "parameters_of",
    "stacks_of",
    "stream_variance",
    "update_squares",
]
