"""Metric `branch_ratio`: size of a branch relative to the stream that it is added to."""

from torch import Tensor

from addnorm.measure.metrics.site_activations import SiteActivations, masked_mean


def branch_ratio(activations: SiteActivations) -> Tensor:
    """Return the root mean square of the branch divided by that of the stream before the write.

    value = RMS(f) / RMS(x),  RMS(a) = sqrt(mean_{t, d}(a[t, d]^2))

    x: (T, D), the stream before the write at the T valid tokens
    f: (T, D), the branch
    value: 0 if the branch adds nothing; near 1 if branch and stream are equally large

    Liu et al., Understanding the Difficulty of Training Transformers, 2020, arXiv 2004.08249,
    section 4, where the variances are compared.
    """
    branch, before = (
        masked_mean(x.float().square().mean(-1), activations.valid).sqrt()
        for x in (activations.branch, activations.before)
    )
    return branch / before.clamp_min(1e-30)
