"""Metric `gradient_norm`: length of the gradient of a site or of the whole model."""

from collections.abc import Iterable

from torch import Tensor, nn

from addnorm.measure.sharded_norms import squared_norms


def squared_gradient_norms(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the squared norm of each parameter's gradient, from which `gradient_norm` is computed.

    value = sqrt(sum_p sum_i (d loss / d p[i])^2)

    p: the parameters of a site (see `site_parameters`), or all of the model
    d loss / d p: the content of `.grad`, summed over accumulated batches and 0 if None; call this
        before clipping to measure unclipped gradients

    Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, arXiv 2002.04745,
    theorem 1: at initialization it grows towards the last layers in Post-LN and not in Pre-LN.
    """
    return squared_norms([parameter.grad for parameter in parameters])
