"""Site metrics: one function of `SiteActivations` per file, registered by the name of its rows."""

from collections.abc import Callable

from torch import Tensor

from addnorm.measure.metrics.attention_entropy import attention_entropy
from addnorm.measure.metrics.branch_ratio import branch_ratio
from addnorm.measure.metrics.max_logit import max_logit
from addnorm.measure.metrics.residual_dependency import residual_dependency
from addnorm.measure.metrics.site_activations import SiteActivations
from addnorm.measure.metrics.stream_rms import stream_rms
from addnorm.measure.metrics.stream_variance import stream_variance

SiteMetric = Callable[[SiteActivations], Tensor | None]

SITE_METRICS: dict[str, SiteMetric] = {
    "stream_variance": stream_variance,
    "dependency": residual_dependency,
    "attention_entropy": attention_entropy,
    "max_logit": max_logit,
}
"""Metrics computed at every site of a forward pass, by the name of their rows.

A metric returns None at sites where it is not defined, such as the entropy of a feed-forward.
"""

MONITOR_METRICS: dict[str, SiteMetric] = {
    **SITE_METRICS,
    "stream_rms": stream_rms,
    "branch_ratio": branch_ratio,
}
"""Metrics of `addnorm.Monitor`, which measures any model."""
