"""Metric `stream_variance`: variance of the residual stream after a site."""

from torch import Tensor

from addnorm.measure.metrics.site_activations import SiteActivations, masked_mean


def stream_variance(activations: SiteActivations) -> Tensor:
    """Return the variance over features of the stream after a site, averaged over tokens.

    value = mean_t(1 / D * sum_d (x[t, d] - m[t])^2),  m[t] = 1 / D * sum_d x[t, d]

    x: (T, D), the stream after the write at the T valid tokens
    value: 1 at initialization with Post-LN; grows with the index of the site with Pre-LN

    Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, arXiv 2002.04745,
    lemma 2.
    """
    return masked_mean(activations.stream.float().var(-1, correction=0), activations.valid)
