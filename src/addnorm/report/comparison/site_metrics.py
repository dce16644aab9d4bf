"""Per-site metrics that the page of a comparison draws, with the texts of their charts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SiteMetric:
    """Texts and axis of the chart of one metric."""

    title: str
    axis_title: str
    note: str
    """How to read the chart."""
    log: bool = True
    """Whether the log switch applies."""


SITE_METRICS = {
    "gradient_norm": SiteMetric(
        "Gradient norm",
        "gradient norm",
        "Norm of the loss gradient with respect to the parameters of each site. A line that falls "
        "towards the input shows vanishing gradients. A line that rises towards the output means "
        "that the first updates change the last sites most.",
    ),
    "stream_variance": SiteMetric(
        "Stream variance",
        "variance",
        "Variance of the residual stream after each site. Where it grows with depth, later sites "
        "contribute little relative to the stream.",
    ),
    "dependency": SiteMetric(
        "Residual dependency",
        "Var[f] / Var[x + f]",
        "Fraction of a site's output variance that comes from its branch: 0 means skip only, 1 "
        "means branch only. High values let a change at one site affect all later sites.",
        log=False,
    ),
    "update_ratio": SiteMetric(
        "Update size",
        "|update| / |weight|",
        "Norm of one optimizer update relative to the norm of the weights. It depends on the "
        "learning rate and the warm-up.",
    ),
}
"""Metrics on the page of a comparison, by the name of their rows; others are not drawn."""
