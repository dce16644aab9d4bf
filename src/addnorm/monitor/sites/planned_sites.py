"""Sites of any model: measured by a probe, a separate forward pass that leaves no trace."""

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.doctor.graph.nodes import CallKey
from addnorm.doctor.trace.module_stack import unwrapped_name
from addnorm.doctor.trace.state_guard import preserve_all_rng, preserve_attributes
from addnorm.measure.evaluation_context import evaluation_mode
from addnorm.measure.probe import Scalars
from addnorm.measure.site_source import SiteSource
from addnorm.monitor.forward_calls import ForwardCall
from addnorm.monitor.sites.site_plan import SitePlan
from addnorm.monitor.sites.site_recorder import SiteRecorder


class PlannedSites(SiteSource):
    """Sites of a plan, as a source of sites for `addnorm.measure.Monitor`.

    Args:
        model: the model, without wrappers
        plan: its sites
        example: arguments of the probe
    """

    def __init__(self, model: nn.Module, plan: SitePlan, example: ForwardCall) -> None:
        self.model, self.plan, self.example = model, plan, example
        self.missing: frozenset[int] = frozenset()
        """Sites that the last probe did not meet."""
        self.problems: tuple[str, ...] = ()
        """What the last probe could not measure, one line each."""
        self._initial_gains: dict[CallKey, Tensor] = {}
        self._fields = [site.to_fields() for site in plan.sites]

    def measure(self, *args: Any, **kwargs: Any) -> Scalars:
        recorder = SiteRecorder(self.model, self.plan, self._initial_gains)
        with leave_no_trace(self.model), self.example.same_autocast(), recorder.recording():
            self.model(*args, **kwargs)
        expected = {site.index for site in self.plan.sites if site.call is not None}
        self.missing = frozenset(expected - recorder.visited)
        self.problems = tuple(dict.fromkeys(recorder.problems))
        return recorder.scalars

    def iter_parameters(self) -> Iterator[tuple[dict[str, Any], Iterable[nn.Parameter]]]:
        named = {
            unwrapped_name(name): parameter
            for name, parameter in self.model.named_parameters(remove_duplicate=False)
        }
        for site, fields in zip(self.plan.sites, self._fields, strict=True):
            yield fields, [named[name] for name in site.weights if name in named]


@contextmanager
def leave_no_trace(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode inside the block; restore everything it may change on exit.

    Restored are buffers, attributes, modes, hooks and all random generators; weights and gradients
    are not touched. Fused encoder layers of torch run operation by operation.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(ignore_warnings())
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(preserve_all_rng(model))
        stack.enter_context(preserve_attributes(model))
        stack.enter_context(preserve_buffers(model))
        stack.enter_context(evaluation_mode(model))
        yield


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Ignore warnings inside the block: the model has shown its own in training already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the buffers that are written inside the block."""
    saved = [
        (buffer, buffer._version, buffer.detach().clone())
        for buffer in model.buffers()
        if buffer.device.type != "meta" and not buffer.is_inference()
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, version, value in saved:
                if buffer._version != version and buffer.shape == value.shape:
                    buffer.copy_(value)


def is_sharded(model: nn.Module) -> bool:
    """Return whether FSDP2 shards a model, so that all processes must run it together."""
    if "torch.distributed.fsdp" not in sys.modules:
        return False
    from torch.distributed.fsdp import FSDPModule

    return any(isinstance(module, FSDPModule) for module in model.modules())
