"""How large is the stream?"""

from torch import Tensor

from addnorm.measure.site_activations import SiteActivations, masked_mean


def stream_variance(activations: SiteActivations) -> Tensor:
    """The variance of the stream behind a site.

    value = mean_t(1 / D * sum_d (x[t, d] - m[t])^2),  m[t] = 1 / D * sum_d x[t, d]

    x: (T, D), the trunk after the write at the T valid tokens
    value: 1 in every post-norm stream at the start; grows with the number of the site in pre-norm
        ones

    Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, arXiv 2002.04745,
    lemma 2.
    """
    return masked_mean(activations.stream.float().var(-1, correction=0), activations.valid)
