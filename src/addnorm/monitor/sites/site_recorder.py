"""Site recorder: measures the planned sites of a model while it runs.

The recorder is a `TorchFunctionMode`, as that of the doctor, but it only looks for the calls of a
plan. A function that the plan does not name passes at once; at a site, the metrics of
`addnorm.measure` become scalars on the device, and the tensors are released.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from addnorm.doctor.graph.nodes import CallKey
from addnorm.doctor.graph.ops import canonical_op, op_name
from addnorm.doctor.trace.attention_logits import LogitSelection, read_logits
from addnorm.doctor.trace.module_stack import ModuleStack
from addnorm.doctor.trace.tensors import iter_tensors
from addnorm.measure.metrics import MONITOR_METRICS, SiteMetric
from addnorm.measure.metrics.site_activations import SiteActivations
from addnorm.measure.probe import Scalars, site_scalars
from addnorm.monitor.sites.gains import gain_scalars
from addnorm.monitor.sites.site_plan import PlannedAttention, PlannedGain, Site, SitePlan

ALL_EXAMPLES = LogitSelection(examples=None, max_logits=1 << 24)
ATTENTION_METRICS = ("max_logit", "attention_entropy")


class SiteRecorder(TorchFunctionMode):
    """Recorder of the planned sites of one forward pass.

    Args:
        model: the model, without wrappers
        plan: its sites
        initial_gains: each gain at the first look, by its call; filled by the recorder
    """

    def __init__(
        self, model: nn.Module, plan: SitePlan, initial_gains: dict[CallKey, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.plan = plan
        self.scalars: Scalars = []
        self.visited: set[int] = set()
        """Indices of the sites that were met."""
        self.problems: list[str] = []
        """Sites that were met but could not be measured, one line each."""
        self._initial_gains = {} if initial_gains is None else initial_gains
        self._modules = ModuleStack(model)
        self._ops = plan.ops
        self._canonical: dict[Any, str] = {}
        self._sites = {site.call: site for site in plan.sites if site.call is not None}
        self._attentions = {attention.call: attention for attention in plan.attentions}
        self._gains: dict[CallKey, list[PlannedGain]] = {}
        for gain in plan.gains:
            self._gains.setdefault(gain.call, []).append(gain)
        self._logits: dict[int, list[Tensor]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Measure the forward passes inside the block."""
        with self._modules.track(), self:
            yield

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        op = self._canonical.get(func)
        if op is None:
            op = self._canonical[func] = canonical_op(op_name(func))
        if op not in self._ops:
            return func(*args, **kwargs)
        call = self._modules.count_call(op)
        if call in self._attentions:
            self._observe(self._read_attention, self._attentions[call], args, kwargs)
        for gain in self._gains.get(call, ()):
            self._observe(self._read_gain, gain, args, kwargs)
        site = self._sites.get(call)
        if site is None:
            return func(*args, **kwargs)
        operands = self._observe(_select_operands, site, args, kwargs)
        out = func(*args, **kwargs)
        self.visited.add(site.index)
        self._observe(self._measure, site, operands, out)
        return out

    def _observe(self, read: Callable[..., Any], *args: Any) -> Any:
        """Call a function of tensors; a failure becomes a problem and never stops the model."""
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                return read(*args)
        except Exception as problem:
            text = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
            self.problems.append(f"{getattr(args[0], 'label', 'a site')}: {text}")
            return None

    def _read_attention(
        self, attention: PlannedAttention, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        reading = read_logits(attention.call.op, args, kwargs, ALL_EXAMPLES)
        if reading is not None:
            self._logits.setdefault(attention.site, []).append(reading.logits)

    def _read_gain(self, gain: PlannedGain, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = list(iter_tensors((args, kwargs)))[gain.position]
        fields = self.plan.sites[gain.site].to_fields()
        if gain.call not in self._initial_gains:
            self._initial_gains[gain.call] = value.detach().clone()
        start = self._initial_gains[gain.call]
        self.scalars += gain_scalars(value, gain.norm, fields, start)

    def _measure(
        self, site: Site, operands: tuple[Tensor | None, Tensor | None] | None, out: Any
    ) -> None:
        before, branch = operands or (None, None)
        metrics: Mapping[str, SiteMetric] = MONITOR_METRICS
        if before is None and branch is not None:
            before = out - branch
        elif branch is None and before is not None:
            branch = out - before
        elif before is None:
            metrics = {n: m for n, m in metrics.items() if n.startswith("stream_")}
        logits = tuple(self._logits.pop(site.index, ()))
        activations = SiteActivations(
            before=_features_last(out if before is None else before, site.axis),
            branch=_features_last(out if branch is None else branch, site.axis),
            stream=_features_last(out, site.axis),
            valid=None,
            logits=logits,
            probabilities=tuple(map(_to_probabilities, logits)),
        )
        if logits and before is None:
            metrics = {**metrics, **{name: MONITOR_METRICS[name] for name in ATTENTION_METRICS}}
        self.scalars += site_scalars(activations, metrics, site.to_fields())


def _select_operands(
    site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor | None, Tensor | None]:
    """Return shortcut and branch of a call; copies, as an addition in place overwrites one."""
    tensors = list(iter_tensors((args, kwargs)))
    before = None if site.shortcut is None else tensors[site.shortcut].clone()
    branch = None if site.branch is None else tensors[site.branch]
    return before, branch


def _features_last(tensor: Tensor, axis: int) -> Tensor:
    """Return a tensor with the features on the last axis; one without tokens gets an axis."""
    moved = tensor if axis in (-1, tensor.dim() - 1) else tensor.movedim(axis, -1)
    return moved if moved.dim() > 1 else moved.reshape(1, -1)


def _to_probabilities(logits: Tensor) -> Tensor:
    """Return attention weights; 0 for a query that may see nothing, NaN where a logit is NaN."""
    hidden = (logits == -torch.inf).all(-1, keepdim=True)
    return logits.float().softmax(-1).masked_fill(hidden, 0.0)
