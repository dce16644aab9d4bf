"""Source of a NaN or infinity: the first operation of a training step whose result is not finite.

The step runs again in training mode, from the same random numbers, under a function mode that
checks every result. Minus infinity is no error, because masks are made of it. If the forward pass
is finite, the gradients are searched from the last site to the first, the order of the backward
pass.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from addnorm.doctor.graph.ops import canonical_op, op_name
from addnorm.doctor.trace.module_stack import ModuleStack, unwrapped_name
from addnorm.doctor.trace.state_guard import preserve_all_rng, preserve_attributes
from addnorm.doctor.trace.tensors import iter_tensors
from addnorm.measure.evaluation_context import compile_disabled
from addnorm.monitor.forward_calls import ForwardCall
from addnorm.monitor.sites.planned_sites import preserve_buffers
from addnorm.monitor.sites.site_plan import Site, SitePlan

FLOAT16_LIMIT = torch.finfo(torch.float16).max


@dataclass(frozen=True, kw_only=True)
class NonfiniteSource:
    """Where the first non-finite value of a step arose."""

    value: float
    """Which value came first: nan or inf."""
    backward: bool
    """Whether it is in the gradients, after a finite forward pass."""
    operation: str
    """Name of the operation; `gradient` in the backward pass, `loss` after the model."""
    path: str
    """Module that executes the operation."""
    site: Site | None
    detail: str
    """What is known about the inputs of the operation."""

    def to_row(self, step: int) -> dict[str, Any]:
        """Return the row of this event."""
        fields = {"site": None} if self.site is None else self.site.to_fields()
        return {
            "step": step,
            "name": "nonfinite",
            "value": self.value,
            **fields,
            "path": self.path,
            "place": self.operation,
            "pass": "backward" if self.backward else "forward",
            "detail": self.detail,
        }


def find_nonfinite(
    model: nn.Module, plan: SitePlan, calls: Sequence[ForwardCall]
) -> NonfiniteSource | None:
    """Return where the first NaN or infinity of a step arose; None if it is not found.

    Weights, gradients, buffers, attributes and random generators are left unchanged.

    Args:
        model: the model, without wrappers
        plan: its sites
        calls: the calls of the step, with the states of the random generators
    """
    for call in calls:
        source = _check_forward(model, plan, call)
        if source is not None:
            return source
    return _check_gradients(model, plan)


def _check_forward(model: nn.Module, plan: SitePlan, call: ForwardCall) -> NonfiniteSource | None:
    check = _FiniteCheck(model, plan)
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(preserve_all_rng(model))
        stack.enter_context(preserve_attributes(model))
        stack.enter_context(preserve_buffers(model))
        stack.enter_context(compile_disabled())
        stack.enter_context(call.same_autocast())
        call.restore_rng()
        model.train()
        stack.enter_context(check.modules.track())
        stack.enter_context(check)
        with suppress(Exception):  # a model that cannot run again, such as one that eats its input
            model(*call.args, **call.kwargs)
    return check.source


class _FiniteCheck(TorchFunctionMode):
    """Function mode that keeps the first operation whose result is NaN or infinite."""

    def __init__(self, model: nn.Module, plan: SitePlan) -> None:
        super().__init__()
        self.source: NonfiniteSource | None = None
        self.modules = ModuleStack(model)
        self._plan = plan
        self._calls = {site.call: site.index for site in plan.sites if site.call is not None}
        self._next_site = 0
        self._names = {id(p): unwrapped_name(name) for name, p in model.named_parameters()}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = op_name(func)
        op = canonical_op(name)
        call = self.modules.count_call(op)
        if self.source is not None or name == "__get__":
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            inputs = [_describe_input(t, self._names) for t in iter_tensors((args, kwargs))]
        out = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            value = next(
                (v for t in iter_tensors(out) if (v := find_bad_value(t)) is not None), None
            )
            if value is not None:
                self.source = NonfiniteSource(
                    value=value,
                    backward=False,
                    operation=op,
                    path=call.path,
                    site=self._find_site(call.path),
                    detail=_describe_inputs(op, inputs, args),
                )
        if call in self._calls:
            self._next_site = self._calls[call] + 1
        return out

    def _find_site(self, path: str) -> Site | None:
        """Return the next site if the operation is on its branch."""
        if self._next_site >= len(self._plan.sites):
            return None
        site = self._plan.sites[self._next_site]
        places = {site.path, site.branch_path, *(name.rpartition(".")[0] for name in site.weights)}
        inside = any(place and (path == place or path.startswith(f"{place}.")) for place in places)
        return site if inside or path in places else None


@dataclass(frozen=True)
class _Input:
    """What the message says about one input of an operation."""

    name: str
    is_finite: bool
    largest: float
    dtype: torch.dtype


def _describe_input(tensor: Tensor, names: dict[int, str]) -> _Input | None:
    if not tensor.is_floating_point() or not tensor.numel() or tensor.device.type == "meta":
        return None
    values = tensor.detach()
    finite = values[values.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else math.nan
    is_finite = find_bad_value(values) is None
    return _Input(names.get(id(tensor), ""), is_finite, largest, tensor.dtype)


def _describe_inputs(op: str, inputs: Sequence[_Input | None], args: tuple[Any, ...]) -> str:
    floats = [(n, each) for n, each in enumerate(inputs, start=1) if each is not None]
    bad = [(n, each) for n, each in floats if not each.is_finite]
    if bad:
        number, first = bad[0]
        name = f" ({first.name})" if first.name else ""
        return f"its input {number}{name} was not finite"
    text = "its inputs were finite"
    if floats:
        largest = max((each for _, each in floats), key=lambda each: each.largest)
        text += (
            f", the largest {largest.largest:.3g} in {str(largest.dtype).removeprefix('torch.')}"
        )
        if largest.dtype == torch.float16:
            text += f", whose limit is {FLOAT16_LIMIT:,.0f}"
    if op == "softmax" and isinstance(args[0], Tensor):
        hidden = (args[0] == -math.inf).all(-1)
        if bool(hidden.any()):
            text += f"; {int(hidden.sum()):,} of {hidden.numel():,} rows are -inf throughout (mask)"
    return text


def find_bad_value(tensor: Tensor) -> float | None:
    """Return nan or inf if a tensor contains one; None otherwise, also for minus infinity."""
    if not tensor.is_floating_point() or not tensor.numel() or tensor.device.type == "meta":
        return None
    values = tensor.detach()
    if bool(values.isnan().any()):
        return math.nan
    return math.inf if bool((values == math.inf).any()) else None


def _check_gradients(model: nn.Module, plan: SitePlan) -> NonfiniteSource | None:
    """Return the last site whose weights have a non-finite gradient."""
    bad = {
        unwrapped_name(name): math.nan if bool(parameter.grad.isnan().any()) else math.inf
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
    }
    if not bad:
        return None
    owned = {name for site in plan.sites for name in site.weights}
    for site in reversed(plan.sites):
        names = [name for name in site.weights if name in bad]
        if names:
            detail = "the forward pass was finite, and so are the gradients of later sites"
            return NonfiniteSource(
                value=bad[names[0]],
                backward=True,
                operation="gradient",
                path=names[0].rpartition(".")[0],
                site=site,
                detail=detail,
            )
    name = next(iter(bad.keys() - owned))
    return NonfiniteSource(
        value=bad[name],
        backward=True,
        operation="gradient",
        path=name.rpartition(".")[0],
        site=None,
        detail="the forward pass was finite, and so are the gradients of all sites",
    )
