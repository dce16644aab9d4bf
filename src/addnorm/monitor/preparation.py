"""Preparation of a monitor: the sites of a model, found and audited by the doctor in one trace."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer

from addnorm.doctor.diagnose import audit as audit_model
from addnorm.doctor.model_trace import CallArguments, trace_model
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.measure.evaluation_context import evaluation_mode
from addnorm.monitor.forward_calls import ForwardCall
from addnorm.monitor.sites.planned_sites import PlannedSites, ignore_warnings, is_sharded
from addnorm.monitor.sites.site_plan import SitePlan, build_plan


@dataclass(frozen=True, kw_only=True)
class PreparedSites:
    """Sites of a model, ready to be measured."""

    model: nn.Module
    plan: SitePlan
    sites: PlannedSites
    example: ForwardCall
    findings: tuple[Finding, ...] = ()
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the weights when the sites were found."""

    def has_changed(self) -> bool:
        """Return whether the model has other weights since its sites were found."""
        return weight_shapes(self.model) != self.shapes


def weight_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight by name."""
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def prepare_sites(
    model: nn.Module, call: ForwardCall, *, optimizers: Sequence[Optimizer] = (), audit: bool
) -> PreparedSites:
    """Find the sites of a model, and audit it.

    Args:
        model: the model, without wrappers
        call: arguments to run it with
        optimizers: optimizers of the model, whose weight decay is audited
        audit: whether to apply the doctor's rules; a sharded model is not audited

    Raises:
        UserError: the model does not run on the arguments
    """
    audit = audit and not is_sharded(model)
    findings: tuple[Finding, ...] = ()
    with ExitStack() as stack:
        stack.enter_context(ignore_warnings())
        stack.enter_context(call.same_autocast())
        inputs = CallArguments(call.args, call.kwargs)
        trace = stack.enter_context(trace_model(model, inputs, backward=audit))
        plan = build_plan(trace)
        if audit:
            optimizer = optimizers[0] if optimizers else None
            findings = audit_model(RuleContext(trace, optimizer=optimizer)).findings
        if is_sharded(model):
            with evaluation_mode(model):
                pass  # frees what FSDP gathered, before the attributes are restored
    return PreparedSites(
        model=model,
        plan=plan,
        sites=PlannedSites(model, plan, call),
        example=call,
        findings=findings,
        shapes=weight_shapes(model),
    )


def skip_sites(model: nn.Module, call: ForwardCall) -> PreparedSites:
    """Return a model without sites, of which only gradients and updates can be measured."""
    plan = SitePlan(sites=())
    sites = PlannedSites(model, plan, call)
    return PreparedSites(
        model=model, plan=plan, sites=sites, example=call, shapes=weight_shapes(model)
    )


def explain_unsupported(model: nn.Module) -> str:
    """Return why a model cannot be measured at all; empty if it can.

    Wrappers that split the weights or the layers of a model leave no names or gradients on it.
    """
    modules = list(model.modules())
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(m, fsdp.FullyShardedDataParallel) for m in modules):
        return "model: expected fully_shard (FSDP2), got FullyShardedDataParallel (FSDP1)"
    if any(type(m).__module__.startswith("deepspeed") for m in modules):
        return "model: expected a module with its own weights, got a DeepSpeed engine"
    if any(type(m).__module__.startswith("torch.distributed.pipelining") for m in modules):
        return "model: expected all layers in one process, got a pipeline stage"
    if _has_tensor_parallel_weights(model):
        return "model: expected whole or FSDP2-sharded weights, got tensor-parallel ones"
    return ""


def _has_tensor_parallel_weights(model: nn.Module) -> bool:
    if "torch.distributed.tensor" not in sys.modules or is_sharded(model):
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(weight, DTensor) for weight in model.parameters())
