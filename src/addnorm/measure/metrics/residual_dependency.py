"""Metric `dependency`: fraction of the stream's variance that comes from the latest branch."""

from torch import Tensor

from addnorm.measure.metrics.site_activations import SiteActivations, masked_mean


def residual_dependency(activations: SiteActivations) -> Tensor:
    """Return the residual dependency of a site.

    value = Var[f] / Var[x + f],  Var[a] = mean((a - mean(a))^2) over all features and tokens

    x: (T, D), the stream before the write at the T valid tokens
    f: (T, D), the branch
    value: 0 if the branch adds nothing, 1 if it is the whole sum; unbounded if x and f cancel

    x and f are the inputs of the write. Factors that a wiring applies inside its write (alpha of
    DeepNorm, omega of Admin, gates, norms of the branch) are not included. With several streams, x
    is the result of `Wiring.trunk`.

    Liu et al., Understanding the Difficulty of Training Transformers, 2020, arXiv 2004.08249,
    section 4.
    """
    branch, total = (
        activations.branch.float(),
        activations.before.float() + activations.branch.float(),
    )
    mask = None if activations.valid is None else activations.valid.unsqueeze(-1)
    return _variance(branch, mask) / _variance(total, mask).clamp_min(1e-30)


def _variance(x: Tensor, mask: Tensor | None) -> Tensor:
    return masked_mean((x - masked_mean(x, mask)).square(), mask)
