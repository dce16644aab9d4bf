"""Location of the first NaN or Inf in a training step.

The step runs again with hooks on the taps of every stack. In the forward pass the hooks see the
sites in order, so the first non-finite tensor names the site. If the forward pass is finite, the
gradients are searched from the last site to the first, which is the order of the backward pass.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.plan import Site
from addnorm.measure.evaluation_context import compile_disabled, preserve_rng
from addnorm.measure.sharded_norms import local_shard
from addnorm.measure.sites import (
    describe_site,
    find_stacks,
    site_fields,
    site_parameters,
    unwrap_model,
)
from addnorm.stacks.taps import TAP_POINTS

GradientKey = tuple[str, int, str]
"""Stack, index of the site (-1 for the input of the stack), component."""


@dataclass(frozen=True, kw_only=True)
class Nonfinite:
    """The first non-finite value of a step and its location."""

    value: float
    """nan, inf or -inf."""
    backward: bool
    """Whether it appeared in the gradients, after a finite forward pass."""
    stack: str | None
    """Name of the stack; None if outside all stacks."""
    site: Site | None
    """The site; None if before the first or after the last."""
    component: str
    """`read`, `branch` or `stream` of a site; `parameters` of its sub-layer; `wiring` for the
    parameters that the wiring has for the site; `input` of a stack; `loss` for everything after the
    stacks; `outside` for parameters of no site."""

    @property
    def location(self) -> dict[str, Any]:
        """Fields that describe the location in a row."""
        known = {} if self.stack is None else {"stack": self.stack}
        known = (
            known if self.stack is None or self.site is None else site_fields(self.stack, self.site)
        )
        return {
            "place": self.component,
            "pass": "backward" if self.backward else "forward",
            **known,
        }

    @property
    def message(self) -> str:
        """The location as a sentence."""
        number = "NaN" if math.isnan(self.value) else "Inf"
        what = f"the first {number}" + (" of the gradients" if self.backward else "") + " arose"
        if self.stack is not None and self.site is not None:
            return f"{what} in {describe_site(self.stack, self.site)} ({self.component})"
        if self.stack is not None:
            return f"{what} in the input of the {self.stack}"
        if self.component == "loss":
            return f"{what} after the last stack (head or loss)"
        return f"{what} in a parameter outside all sites"


def first_nonfinite(
    model: nn.Module,
    run_forward: Callable[[], Tensor],
    run_backward: Callable[[Tensor], Any] = Tensor.backward,
) -> Nonfinite | None:
    """Run a training step again and return the location of its first NaN or Inf.

    Gradients, buffers and random generators are restored afterwards. Set the generators to their
    state at the failed step to reproduce its dropout. A compiled model runs eagerly. With several
    processes, all of them must call this function; each returns its own result.

    Args:
        model: the model, which may be wrapped or compiled
        run_forward: calls the model as in training and returns the loss
        run_backward: computes the gradients of that loss

    Returns:
        The location, or None if all values are finite. Within a site the gradients are checked in
        the order stream, branch, parameters, read, wiring.
    """
    model = unwrap_model(model)
    gradients: dict[GradientKey, float] = {}
    forward: list[Nonfinite] = []
    with (
        preserve_rng(model),
        _preserve_buffers(model),
        compile_disabled(),
        _record_nonfinite(model, forward, gradients),
    ):
        loss = run_forward()
        if (value := _find_nonfinite_value(loss)) is not None:
            forward.append(
                Nonfinite(value=value, backward=False, stack=None, site=None, component="loss")
            )
        backward = None
        if loss.requires_grad:
            # Also after a non-finite forward pass: other processes wait in the backward pass.
            with _preserve_gradients(model):
                run_backward(loss)
                backward = _find_first_in_backward(model, gradients)
    return forward[0] if forward else backward


@contextmanager
def _record_nonfinite(
    model: nn.Module, forward: list[Nonfinite], gradients: dict[GradientKey, float]
) -> Iterator[None]:
    """Record non-finite tensors of the forward pass, and of the gradients that follow it."""

    def make_hook(name: str, site: Site | None, component: str) -> Callable[..., None]:
        def record(_module: nn.Module, args: Any, output: Any = None) -> None:
            x = args[0] if site is None else output
            if (value := _find_nonfinite_value(x)) is not None:
                forward.append(
                    Nonfinite(
                        value=value, backward=False, stack=name, site=site, component=component
                    )
                )
            elif x.requires_grad:
                key = (name, -1 if site is None else site.index, component)
                x.register_hook(lambda grad: _record_gradient(gradients, key, grad))

        return record

    with ExitStack() as hooks:
        for name, stack in find_stacks(model).items():
            entry = stack.register_forward_pre_hook(make_hook(name, None, "input"))
            hooks.callback(entry.remove)
            for site in stack.plan.sites:
                for point in TAP_POINTS:
                    tap = getattr(stack.taps, point)[site.index]
                    hooks.callback(tap.register_forward_hook(make_hook(name, site, point)).remove)
        yield


@contextmanager
def _preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Restore buffers on exit, such as running statistics, which a training step updates."""
    saved = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)


@contextmanager
def _preserve_gradients(model: nn.Module) -> Iterator[None]:
    saved = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in saved:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, grad in saved:
            parameter.grad = grad


def _record_gradient(gradients: dict[GradientKey, float], key: GradientKey, grad: Tensor) -> None:
    if (value := _find_nonfinite_value(grad)) is not None:
        gradients[key] = value


def _find_first_in_backward(
    model: nn.Module, gradients: dict[GradientKey, float]
) -> Nonfinite | None:
    """Return the first non-finite gradient in the order of a backward pass."""
    nonfinite = {
        id(parameter): value
        for parameter in model.parameters()
        if parameter.grad is not None
        and (value := _find_nonfinite_value(parameter.grad)) is not None
    }
    for name, stack in reversed(find_stacks(model).items()):
        for site in reversed(stack.plan.sites):
            inside = {id(each) for each in stack.sublayers[site.index].parameters()}
            own = [id(each) for each in site_parameters(stack, site) if id(each) in nonfinite]
            values = {point: gradients.get((name, site.index, point)) for point in TAP_POINTS}
            values["parameters"] = next((nonfinite[each] for each in own if each in inside), None)
            values["wiring"] = next((nonfinite[each] for each in own if each not in inside), None)
            for component in ("stream", "branch", "parameters", "read", "wiring"):
                if (value := values[component]) is not None:
                    return Nonfinite(
                        value=value, backward=True, stack=name, site=site, component=component
                    )
    for value in nonfinite.values():
        return Nonfinite(value=value, backward=True, stack=None, site=None, component="outside")
    return None


def _find_nonfinite_value(x: Tensor) -> float | None:
    """Return a non-finite value of a tensor, NaN before Inf; None if all are finite."""
    x = local_shard(x.detach())
    if bool(torch.isfinite(x).all()):
        return None
    if bool(torch.isnan(x).any()):
        return math.nan
    return math.inf if bool((x == math.inf).any()) else -math.inf
