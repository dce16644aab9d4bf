"""How large are the gradients?"""

from collections.abc import Iterable

from torch import Tensor, nn

from addnorm.measure.sharded_norms import squared_norms


def squared_gradient_norms(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The squared length of each parameter's gradient, from which `gradient_norm` is made.

    value = sqrt(sum_p sum_i (d loss / d p[i])^2)

    p: the parameters of a site (see `parameters_of`), or all of the model
    d loss / d p: as it stands in `.grad`, summed over accumulated batches, 0 where there is none;
        clipped if it was clipped before

    Xiong et al., On Layer Normalization in the Transformer Architecture, 2020, arXiv 2002.04745,
    theorem 1: at the start it grows towards the last layers in Post-LN and not in Pre-LN.
    """
    return squared_norms([parameter.grad for parameter in parameters])
