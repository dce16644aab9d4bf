"""Measurements of models: site metrics, gradients, updates, loss spikes, non-finite values.

A site metric is a function of `SiteActivations` in a file of `metrics/`. `forward_rows` computes
all of them for one forward pass, `Monitor` during training, together with gradient norms and update
ratios.
"""

from addnorm.measure.attention_maps import attention_maps
from addnorm.measure.gradient_norm import squared_gradient_norms
from addnorm.measure.metrics import SITE_METRICS
from addnorm.measure.metrics.attention_entropy import attention_entropy
from addnorm.measure.metrics.max_logit import max_logit
from addnorm.measure.metrics.residual_dependency import residual_dependency
from addnorm.measure.metrics.site_activations import SiteActivations
from addnorm.measure.metrics.stream_variance import stream_variance
from addnorm.measure.monitor import Monitor
from addnorm.measure.nonfinite import Nonfinite, first_nonfinite
from addnorm.measure.probe import forward_rows
from addnorm.measure.sites import find_stacks, site_parameters
from addnorm.measure.spikes import SpikeDetector
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
