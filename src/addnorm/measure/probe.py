"""Site metrics of one forward pass, recorded by hooks on the taps of a stack.

`visit_sites` runs a model in evaluation mode. At every site it collects what passes the taps and
calls a function with the `SiteActivations`; these are released before the next site. The metrics
of `metrics/` are such functions:

    forward_rows(model, ids) -> [{"name": "stream_variance", "value": 1.0, "stack": "decoder",
                                  "site": 0, "layer": 0, "kind": "self"}, ...]
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.plan import Site
from addnorm.core.rows import Row
from addnorm.measure.evaluation_context import evaluation_mode
from addnorm.measure.metrics import SITE_METRICS, SiteMetric
from addnorm.measure.metrics.site_activations import SiteActivations
from addnorm.measure.sites import find_stacks, site_fields, unwrap_model
from addnorm.stacks.stack import Stack
from addnorm.sublayers.multihead import MultiHeadAttention

SiteVisitor = Callable[[str, Site, SiteActivations], None]
Scalars = list[tuple[dict[str, Any], Tensor]]


def forward_rows(model: nn.Module, *args: Any, **kwargs: Any) -> list[Row]:
    """Run a model once in evaluation mode and return one row per site and metric.

    Args:
        model: an addnorm model or Stack, or a module that holds one
        *args, **kwargs: arguments of the model

    >>> from addnorm.models import build
    >>> model = build(kind="lm", vocab=9, dim=8, depth=1, heads=2)
    >>> rows = forward_rows(model, torch.tensor([[1, 4, 5]]))
    >>> [(row["name"], row["site"]) for row in rows][:4]
    [('stream_variance', 0), ('dependency', 0), ('attention_entropy', 0), ('max_logit', 0)]
    """
    scalars = forward_scalars(model, *args, **kwargs)
    values = torch.stack([value for _, value in scalars]).tolist() if scalars else []
    return [{**row, "value": value} for (row, _), value in zip(scalars, values, strict=True)]


def forward_scalars(model: nn.Module, *args: Any, **kwargs: Any) -> Scalars:
    """Return pairs of a row and its value as a tensor, without waiting for the device.

    If the model calls a stack several times, the last call counts.
    """
    by_site: dict[tuple[str, int], Scalars] = {}

    def visit(stack: str, site: Site, activations: SiteActivations) -> None:
        fields = site_fields(stack, site)
        by_site[stack, site.index] = list(site_scalars(activations, SITE_METRICS, fields))

    visit_sites(model, visit, *args, **kwargs)
    return [scalar for scalars in by_site.values() for scalar in scalars]


def site_scalars(
    activations: SiteActivations, metrics: Mapping[str, SiteMetric], fields: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Yield a row and its value for each metric that is defined at a site.

    Args:
        activations: activations at the site
        metrics: functions by the name of their rows
        fields: fields that identify the site in a row
    """
    for name, metric in metrics.items():
        value = metric(activations)
        if value is not None:
            yield {"name": name, "value": 0.0, **fields}, value


def visit_sites(model: nn.Module, visit: SiteVisitor, *args: Any, **kwargs: Any) -> None:
    """Run a model once in evaluation mode and call `visit` with the activations of each site.

    Weights, gradients, buffers, training flags and random generators are left unchanged. A compiled
    model runs eagerly, because hooks have no effect on compiled code.

    Args:
        model: an addnorm model or Stack, or a module that holds one; may be wrapped
        visit: function of the stack's name, the site and its activations
        *args, **kwargs: arguments of the model
    """
    model = unwrap_model(model)
    with evaluation_mode(model), record_sites(find_stacks(model), visit):
        model(*args, **kwargs)


@contextmanager
def record_sites(stacks: dict[str, Stack], visit: SiteVisitor) -> Iterator[None]:
    """Call `visit` for every site of every forward pass inside the block."""
    with ExitStack() as hooks:
        for name, stack in stacks.items():
            hooks.enter_context(_SiteRecorder(name, stack, visit).attached())
        yield


class _SiteRecorder:
    """Hooks on the taps of one stack, which collect tensors until a site is complete."""

    def __init__(self, name: str, stack: Stack, visit: SiteVisitor) -> None:
        self.name, self.stack, self.visit = name, stack, visit
        self.valid: Tensor | None = None
        self.recorded: dict[str, list[Tensor]] = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Attach the hooks inside the block."""
        stack, taps = self.stack, self.stack.taps
        with ExitStack() as hooks:
            entry = stack.register_forward_pre_hook(self._on_forward_start, with_kwargs=True)
            hooks.callback(entry.remove)
            for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
                watched = [(name, getattr(taps, name)[site.index]) for name in ("skip", "branch")]
                for module in sublayer.modules():
                    if isinstance(module, MultiHeadAttention):
                        watched.append(("logits", module.logits_tap))
                        watched.append(("probabilities", module.probabilities_tap))
                for name, tap in watched:
                    hooks.callback(tap.register_forward_hook(self._make_record_hook(name)).remove)
                stream = taps.stream[site.index]
                hooks.callback(stream.register_forward_hook(self._make_site_hook(site)).remove)
            yield

    def _on_forward_start(self, _stack: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        self.valid, self.recorded = kwargs.get("mask"), {}

    def _make_record_hook(self, tap_name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def record(_tap: nn.Module, _args: Any, output: Tensor) -> None:
            self.recorded.setdefault(tap_name, []).append(output)

        return record

    def _make_site_hook(self, site: Site) -> Callable[[nn.Module, Any, Tensor], None]:
        def finish(_tap: nn.Module, _args: Any, stream: Tensor) -> None:
            activations = SiteActivations(
                before=self.recorded["skip"][-1],
                branch=self.recorded["branch"][-1],
                stream=stream,
                valid=self.valid,
                logits=tuple(self.recorded.get("logits", ())),
                probabilities=tuple(self.recorded.get("probabilities", ())),
            )
            self.recorded = {}
            self.visit(self.name, site, activations)

        return finish
