"""How much of the stream comes from the last branch?"""

from torch import Tensor

from addnorm.measure.site_activations import SiteActivations, masked_mean


def residual_dependency(activations: SiteActivations) -> Tensor:
    """The residual dependency of a site.

    value = Var[f] / Var[x + f],  Var[a] = mean((a - mean(a))^2) over all features and tokens

    x: (T, D), the trunk before the write at the T valid tokens
    f: (T, D), the branch
    value: 0 if the branch adds nothing, 1 if it is all there is; no bound where x and f cancel

    x and f are what the write is offered: a factor that a wiring puts on one of them inside its
    write (alpha of DeepNorm, omega of Admin, a gate, a norm of the branch) is not in the value.
    Where the state holds several streams x is what the wiring calls its trunk.

    Liu et al., Understanding the Difficulty of Training Transformers, 2020, arXiv 2004.08249,
    section 4.
    """
    branch, total = (
        activations.branch.float(),
        activations.before.float() + activations.branch.float(),
    )
    where = None if activations.valid is None else activations.valid.unsqueeze(-1)
    return _variance(branch, where) / _variance(total, where).clamp_min(1e-30)


def _variance(x: Tensor, mask: Tensor | None) -> Tensor:
    return masked_mean((x - masked_mean(x, mask)).square(), mask)
