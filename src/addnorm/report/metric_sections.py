"""Sections of a page on metrics that a monitor measures, and how their sites are drawn."""

from collections.abc import Callable
from dataclasses import dataclass

from addnorm.report.charts.sites import plot_heatmap, plot_over_depth, plot_over_steps
from addnorm.report.html.page import Chart, Note


@dataclass(frozen=True)
class SiteChart:
    """A way to draw the sites of a metric."""

    title: str
    """What follows the metric in the title of the chart."""
    plot: Callable[..., Chart | Note]


BY_SITE_AND_STEP = SiteChart("by site and step", plot_heatmap)
OVER_DEPTH = SiteChart("over depth", plot_over_depth)
OVER_STEPS = SiteChart("over steps", plot_over_steps)


@dataclass(frozen=True)
class Metric:
    """A metric that the trainer logs, and how its sites are drawn."""

    name: str
    """Name of the rows."""
    title: str
    axis_title: str
    site_charts: tuple[SiteChart, ...]
    is_optional: bool = False
    """Whether the page does not mention that it was not measured."""


@dataclass(frozen=True)
class MetricSection:
    """A section of the page: related metrics and how to read their charts."""

    title: str
    note: str
    metrics: tuple[Metric, ...]


METRIC_SECTIONS = (
    MetricSection(
        "Gradients",
        "Norm of the loss gradient with respect to the parameters. A color that changes steadily "
        "from one end of the stack to the other shows vanishing or exploding gradients.",
        (Metric("gradient_norm", "Gradient norm", "gradient norm", (BY_SITE_AND_STEP,)),),
    ),
    MetricSection(
        "Residual stream",
        "Stream variance shows whether the stream grows with depth. Residual dependency is the "
        "fraction of a site's output variance that comes from its branch rather than from the "
        "skip.",
        (
            Metric("stream_variance", "Stream variance", "variance", (OVER_DEPTH, OVER_STEPS)),
            Metric(
                "dependency", "Residual dependency", "Var[f] / Var[x + f]", (OVER_DEPTH, OVER_STEPS)
            ),
            Metric("stream_rms", "Stream RMS", "RMS", (OVER_DEPTH, OVER_STEPS), is_optional=True),
            Metric(
                "branch_ratio",
                "Branch to stream ratio",
                "RMS[f] / RMS[x]",
                (OVER_DEPTH, OVER_STEPS),
                is_optional=True,
            ),
        ),
    ),
    MetricSection(
        "Updates",
        "Norm of one optimizer update relative to the norm of the weights that it changes.",
        (Metric("update_ratio", "Update to weight ratio", "|update| / |weight|", (OVER_STEPS,)),),
    ),
    MetricSection(
        "Norm gains",
        "Gains as the model applies them, averaged over the norms of a site. A gain near zero "
        "switches a feature off.",
        (
            Metric("gain_min", "Smallest gain", "|gain|", (OVER_STEPS,), is_optional=True),
            Metric("gain_max", "Largest gain", "|gain|", (OVER_STEPS,), is_optional=True),
            Metric(
                "gain_dead",
                "Gains below 1 % of the median",
                "fraction",
                (OVER_STEPS,),
                is_optional=True,
            ),
            Metric(
                "gain_moved",
                "Relative change of the gains",
                "|g - g0| / |g0|",
                (OVER_STEPS,),
                is_optional=True,
            ),
        ),
    ),
    MetricSection(
        "Attention",
        "An entropy near zero means that attention selects a single token. Growing logits often "
        "precede a divergence.",
        (
            Metric("attention_entropy", "Attention entropy", "entropy (nats)", (OVER_STEPS,)),
            Metric("max_logit", "Largest attention logit", "logit", (OVER_STEPS,)),
        ),
    ),
)
"""Sections in the order of the page; a metric that is not listed goes to "Other metrics"."""
