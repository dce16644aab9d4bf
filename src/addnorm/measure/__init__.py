"""Measurements: what happens at the sites of a stack, as rows, one question a file.

Questions about a forward are functions of a `Sight` and stand in `QUESTIONS`; `forward_rows` asks
them all, and `Monitor` asks them of a training, with gradients and updates beside. To add one:
a file with its function, and a line in `QUESTIONS`.
"""

from addnorm.measure.attention import attention_maps
from addnorm.measure.attention_entropy import attention_entropy
from addnorm.measure.gradient_norm import squared_gradient_norms
from addnorm.measure.max_logit import max_logit
from addnorm.measure.monitor import Monitor
from addnorm.measure.nonfinite import Nonfinite, first_nonfinite
from addnorm.measure.probe import SITE_METRICS, forward_rows
from addnorm.measure.residual_dependency import residual_dependency
from addnorm.measure.site_activations import SiteActivations
from addnorm.measure.sites import find_stacks, site_parameters
from addnorm.measure.spikes import SpikeDetector
from addnorm.measure.stream_variance import stream_variance
from addnorm.measure.update_ratio import squared_update_norms

__all__ = [
    "Monitor",
    "Nonfinite",
    "SITE_METRICS",
    "SiteActivations",
    "SpikeDetector",
    "attention_entropy",
    "attention_maps",
    "residual_dependency",
    "first_nonfinite",
    "forward_rows",
    "squared_gradient_norms",
    "max_logit",
    "site_parameters",
    "find_stacks",
    "stream_variance",
    "squared_update_norms",
]
