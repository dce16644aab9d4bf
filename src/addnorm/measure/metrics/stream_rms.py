"""Metric `stream_rms`: root mean square of the residual stream after a site."""

from torch import Tensor

from addnorm.measure.metrics.site_activations import SiteActivations, masked_mean


def stream_rms(activations: SiteActivations) -> Tensor:
    """Return the root mean square of the stream after a site.

    value = sqrt(mean_{t, d}(x[t, d]^2))

    x: (T, D), the stream after the write at the T valid tokens; unlike the variance, it includes
        the mean over features, which norms without centering keep

    Zhang and Sennrich, Root Mean Square Layer Normalization, 2019, arXiv 1910.07467, section 4.
    """
    squares = activations.stream.float().square().mean(-1)
    return masked_mean(squares, activations.valid).sqrt()
