"""The probe: a forward beside the training, which leaves no trace, and what is seen in it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.plan import Site
from addnorm.core.rows import Row
from addnorm.measure.attention_entropy import attention_entropy
from addnorm.measure.max_logit import max_logit
from addnorm.measure.residual_dependency import residual_dependency
from addnorm.measure.site_activations import SiteActivations
from addnorm.measure.sites import find_stacks, site_fields, unwrap_model
from addnorm.measure.stream_variance import stream_variance
from addnorm.stacks.stack import Stack
from addnorm.sublayers.multihead import MultiHeadAttention

SiteMetric = Callable[[SiteActivations], Tensor | None]
SiteVisitor = Callable[[str, Site, SiteActivations], None]
Scalars = list[tuple[dict[str, Any], Tensor]]

SITE_METRICS: dict[str, SiteMetric] = {
    "stream_variance": stream_variance,
    "dependency": residual_dependency,
    "attention_entropy": attention_entropy,
    "max_logit": max_logit,
}
"""What is asked at every site of a forward: name of the row, and its formula."""


def forward_rows(model: nn.Module, *args: Any, **kwargs: Any) -> list[Row]:
    """The rows of one forward of a model, called with these arguments, in evaluation mode.

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
    """As `forward_rows`, with the values still on their device.

    Where a stack is called several times in a forward, its last call counts.
    """
    found: dict[tuple[str, int], Scalars] = {}

    def visit(stack: str, site: Site, sight: SiteActivations) -> None:
        answers = ((name, question(sight)) for name, question in SITE_METRICS.items())
        found[stack, site.index] = [
            ({"name": name, "value": 0.0, **site_fields(stack, site)}, answer)
            for name, answer in answers
            if answer is not None
        ]

    visit_sites(model, visit, *args, **kwargs)
    return [scalar for scalars in found.values() for scalar in scalars]


def visit_sites(model: nn.Module, visit: SiteVisitor, *args: Any, **kwargs: Any) -> None:
    """Run a model once in evaluation mode and show every site to `visit`.

    Weights, gradients, buffers, flags of training and random generators stay as they are. Of a
    compiled model the original runs, since hooks do not reach what is compiled.
    """
    model = unwrap_model(model)
    with evaluation_mode(model), record_sites(find_stacks(model), visit):
        model(*args, **kwargs)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; everything as it was afterwards."""
    flags = {module: module.training for module in model.modules()}
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(preserve_rng(model))
        stack.enter_context(compile_disabled())
        try:
            model.eval()
            yield
        finally:
            for module, training in flags.items():
                module.training = training
            _reshard(model)


@contextmanager
def preserve_rng(model: nn.Module) -> Iterator[None]:
    """Whatever is drawn inside, random generators go on as if nothing had been."""
    devices = {parameter.device for parameter in model.parameters()}
    drawing = [device for device in devices if device.type not in ("cpu", "meta")]
    with torch.random.fork_rng(drawing, device_type=drawing[0].type if drawing else "cuda"):
        yield


@contextmanager
def compile_disabled() -> Iterator[None]:
    """Run as it is written whatever torch.compile was told; nothing is compiled anew."""
    if "torch._dynamo" not in sys.modules:  # nobody compiled, and to import it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def record_sites(stacks: dict[str, Stack], visit: SiteVisitor) -> Iterator[None]:
    """Show every site of every forward inside to `visit`, one after the other."""
    with ExitStack() as hooks:
        for name, stack in stacks.items():
            hooks.enter_context(_SiteRecorder(name, stack, visit).attached())
        yield


class _SiteRecorder:
    """Gathers what passes the taps of a stack until a site is complete."""

    def __init__(self, name: str, stack: Stack, visit: SiteVisitor) -> None:
        self.name, self.stack, self.visit = name, stack, visit
        self.valid: Tensor | None = None
        self.recorded: dict[str, list[Tensor]] = {}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """While it looks."""
        stack, taps = self.stack, self.stack.taps
        with ExitStack() as hooks:
            entry = stack.register_forward_pre_hook(self._on_forward_start, with_kwargs=True)
            hooks.callback(entry.remove)
            for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
                places = [(place, getattr(taps, place)[site.index]) for place in ("skip", "branch")]
                for module in sublayer.modules():
                    if isinstance(module, MultiHeadAttention):
                        places.append(("logits", module.logits_tap))
                        places.append(("probabilities", module.probabilities_tap))
                for place, tap in places:
                    hooks.callback(tap.register_forward_hook(self._make_record_hook(place)).remove)
                stream = taps.stream[site.index]
                hooks.callback(stream.register_forward_hook(self._make_site_hook(site)).remove)
            yield

    def _on_forward_start(self, _stack: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        self.valid, self.recorded = kwargs.get("mask"), {}

    def _make_record_hook(self, tap_name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def keep(_tap: nn.Module, _args: Any, output: Tensor) -> None:
            self.recorded.setdefault(tap_name, []).append(output)

        return keep

    def _make_site_hook(self, site: Site) -> Callable[[nn.Module, Any, Tensor], None]:
        def finish(_tap: nn.Module, _args: Any, stream: Tensor) -> None:
            sight = SiteActivations(
                before=self.recorded["skip"][-1],
                branch=self.recorded["branch"][-1],
                stream=stream,
                valid=self.valid,
                logits=tuple(self.recorded.get("logits", ())),
                probabilities=tuple(self.recorded.get("probabilities", ())),
            )
            self.recorded = {}
            self.visit(self.name, site, sight)

        return finish


def _reshard(model: nn.Module) -> None:
    """Give back what a forward without backward gathered from other processes."""
    if "torch.distributed.fsdp" in sys.modules:
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
